// SPDX-License-Identifier: GPL-2.0-or-later
//! The door of slurm.conf's `Prolog=` and `Epilog=`: what slurmd says of a job is noted down for its steps, and removed.
//!
//! slurmd builds the environment of these programs anew, from the job's credential and its own configuration; whatever a user
//! can put there has the prefix `SPANK_` (`_build_env` in src/plugins/prep/script/prep_script_slurmd.c, read in 22.05, 24.11
//! and 26.05). So all of it is trusted here. What is missing from it:
//! - the account, where the job has none; the QOS in releases before 26.05, and there where the job has none;
//! - all that comes from the credential, where slurmd runs the program without one.

use std::time::Instant;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::facts::Fact;
use crate::host::Host;
use crate::hostlist::{HostList, nth_repeated};
use crate::janitor;
use crate::record::job::{JobId, JobRecord, JobRecords, is_name, parse_gpus};

/// Notes down what the environment says of a job.
pub fn prolog(host: &Host, config: &Config, env: &dyn Fn(&str) -> Option<String>) -> Result<(JobId, JobRecord)> {
    let id = id(host, env)?;
    let records = JobRecords::open(&config.run_dir)?;
    // Of an earlier run, whose epilog was not called. It would be believed if this one could not be written.
    records.forget(&id)?;
    let mut record = JobRecord::new(host, None, number(env, "SLURM_JOB_UID")?);
    read(&mut record, env);
    records.write(&id, &record)?;
    Ok((id, record))
}

/// Forgets the job, and removes what dead step daemons have left of it.
pub fn epilog(
    host: &Host,
    config: &Config,
    deadline: Instant,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<janitor::Reaped> {
    let id = id(host, env)?;
    let records = JobRecords::existing(&config.run_dir);
    let forgotten = records.and_then(|records| records.map_or(Ok(()), |records| records.forget(&id)));
    let reaped = janitor::reap_job(host, config, &id, deadline)?;
    forgotten.map(|()| reaped)
}

fn id(host: &Host, env: &dyn Fn(&str) -> Option<String>) -> Result<JobId> {
    Ok(JobId { node: host.node_level(env("SLURMD_NODENAME"))?, job: number(env, "SLURM_JOB_ID")? })
}

fn number(env: &dyn Fn(&str) -> Option<String>, name: &'static str) -> Result<u32> {
    let value = env(name).ok_or_else(|| {
        Error::new(format!("{name} is not in the environment"))
            .hint("this is for slurm.conf's Prolog= and Epilog=, or a script that they name")
    })?;
    value.parse().map_err(|_| Error::new(format!("{name} is not a number")).value(value))
}

fn read(record: &mut JobRecord, env: &dyn Fn(&str) -> Option<String>) {
    // There if anything of the credential is.
    let cpus_per_node = env("SLURM_JOB_CPUS_PER_NODE");
    let none = |release_has_it: bool| {
        if cpus_per_node.is_some() && release_has_it { Fact::Known(String::new()) } else { Fact::Unknown }
    };
    let fact = |name| env(name).filter(|name| is_name(name)).map(Fact::Known);
    record.partition = fact("SLURM_JOB_PARTITION").unwrap_or_default();
    record.account = fact("SLURM_JOB_ACCOUNT").unwrap_or_else(|| none(true));
    // New in 26.05, as the QOS; a site can add the QOS itself before.
    record.qos = fact("SLURM_JOB_QOS").unwrap_or_else(|| none(env("SLURM_JOB_SLUID").is_some()));
    record.gpus = env("SLURM_JOB_GPUS").and_then(|gpus| parse_gpus(&gpus)).unwrap_or_default();
    let nodes = env("SLURM_JOB_NODELIST").or_else(|| env("SLURM_NODELIST"));
    record.cpus = cpus_per_node.and_then(|cpus| cpus_here(&cpus, nodes.as_deref(), env("SLURMD_NODENAME").as_deref()));
}

/// This node's number in a list that has one for each node of the job, in their order (sbatch(1)).
fn cpus_here(cpus: &str, nodes: Option<&str>, node: Option<&str>) -> Option<u32> {
    // The same on all of them.
    if !cpus.contains(',') {
        return nth_repeated(cpus, 0);
    }
    let place = HostList::parse(nodes?)?.position(node?)?;
    nth_repeated(cpus, place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_of(variables: &[(&str, &str)]) -> JobRecord {
        let host = Host::read(&Config::default()).unwrap();
        let mut record = JobRecord::new(&host, None, 1);
        let env = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        read(&mut record, &env);
        record
    }

    fn known(text: &str) -> Fact<String> {
        Fact::Known(text.to_owned())
    }

    #[test]
    fn what_an_earlier_run_was_is_not_believed_of_one_that_cannot_be_noted_down() {
        let temp = tempfile::tempdir().unwrap();
        let config = Config { run_dir: temp.path().join("run"), ..Config::default() };
        let host = Host::read(&config).unwrap();
        let env = |uid: &'static str| {
            move |name: &str| match name {
                "SLURM_JOB_ID" => Some("7".to_owned()),
                "SLURM_JOB_UID" => Some(uid.to_owned()),
                _ => None,
            }
        };
        let (id, _) = prolog(&host, &config, &env("1001")).unwrap();
        let is_noted = || JobRecords::open(&config.run_dir).unwrap().read(&id, &host).unwrap().is_some();
        assert!(is_noted());
        prolog(&host, &config, &env("nobody")).unwrap_err();
        assert!(!is_noted());
    }

    #[test]
    fn what_slurmd_says_and_what_it_leaves_out() {
        let full = [
            ("SLURM_JOB_PARTITION", "gpu"),
            ("SLURM_JOB_ACCOUNT", "physics"),
            ("SLURM_JOB_CPUS_PER_NODE", "4(x2),1"),
            ("SLURM_NODELIST", "n[1-2],z"),
            ("SLURMD_NODENAME", "z"),
            ("SLURM_JOB_GPUS", "0,2"),
        ];
        let record = read_of(&full);
        assert_eq!((record.partition, record.account, record.qos), (known("gpu"), known("physics"), Fact::Unknown));
        assert_eq!((record.cpus, record.gpus), (Some(1), vec![0, 2]));
        // A job without an account, in a release that would name its QOS.
        let record = read_of(&[("SLURM_JOB_CPUS_PER_NODE", "2(x3)"), ("SLURM_JOB_SLUID", "s1")]);
        assert_eq!((record.partition, record.account, record.qos), (Fact::Unknown, known(""), known("")));
        assert_eq!((record.cpus, record.gpus), (Some(2), vec![]));
        // No credential.
        let record = read_of(&[("SLURM_JOB_PARTITION", "gpu"), ("SLURM_JOB_SLUID", "s1")]);
        assert_eq!((record.partition, record.account, record.qos), (known("gpu"), Fact::Unknown, Fact::Unknown));
        // What cannot be, is not believed.
        let record = read_of(&[("SLURM_JOB_PARTITION", "a\nb"), ("SLURM_JOB_GPUS", "GPU-1")]);
        assert_eq!((record.partition, record.gpus), (Fact::Unknown, vec![]));
        let elsewhere = [("SLURM_JOB_CPUS_PER_NODE", "4,1"), ("SLURM_NODELIST", "a,b"), ("SLURMD_NODENAME", "c")];
        assert_eq!(read_of(&elsewhere).cpus, None);
    }
}
