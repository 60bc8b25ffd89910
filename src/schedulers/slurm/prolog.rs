// SPDX-License-Identifier: GPL-2.0-or-later
//! The entry point for slurm.conf's `Prolog=` and `Epilog=`: what slurmd says about a job is recorded for its steps, and removed.
//!
//! slurmd builds the environment of these programs anew, from the job's credential and its own configuration; whatever a user can put there
//! has the prefix `SPANK_` (`_build_env` in src/plugins/prep/script/prep_script_slurmd.c, read in 22.05, 24.11 and 26.05). So everything
//! else is trusted here. Missing from it are:
//! - the QOS in every release before 26.05, and since then if slurmctld does not have it (`setup_cred_arg`), as while it cannot reach
//!   slurmdbd. The environment does not tell these cases apart, so a missing QOS is unknown;
//! - the account, if the job has none;
//! - all that comes from the credential, if slurmd runs the program without one.
//!
//! The account and the QOS are the user's words: slurmctld accepts them as they are unless slurm.conf makes it check them.
//!
//! An empty value counts as unknown: Slurm writes none, but a wrapper script that looks a value up and gets no answer does.

pub mod gpus;

use std::path::{Path, PathBuf};
use std::time::Instant;

use self::gpus::GpuSources;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::facts::Fact;
use crate::host::Host;
use crate::hostlist::{HostList, Repeated};
use crate::janitor;
use crate::job::JobOnNode;
use crate::record::job::{JobRecord, JobRecords, is_name};
use crate::schedulers::slurm::conf::{self, Checked, Lines};

/// Records what the environment says about a job.
pub fn prolog(host: &Host, config: &Config, env: &dyn Fn(&str) -> Option<String>) -> Result<(JobOnNode, JobRecord)> {
    let id = id(host, env)?;
    let records = JobRecords::open(&config.run_dir)?;
    // The record of an earlier run whose epilog was not called: it would be believed if this one could not be written.
    records.forget(&id)?;
    let mut record = JobRecord::new(host, None, number(env, "SLURM_JOB_UID")?);
    let slurm_conf = env("SLURM_CONF").map(PathBuf::from).or_else(|| conf::find(None));
    let checked = slurm_conf.as_ref().map(|file| Checked::by(&Lines::read(file)));
    read(&mut record, env, checked.unwrap_or_default());
    record.gpus = gpus::find(env, &GpuSources { slurm_conf, proc: &host.proc, root: Path::new("/") });
    records.write(&id, &record)?;
    Ok((id, record))
}

/// Removes the job's record, and what dead step daemons left of the job.
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

fn id(host: &Host, env: &dyn Fn(&str) -> Option<String>) -> Result<JobOnNode> {
    Ok(JobOnNode { node: host.node_level(env("SLURMD_NODENAME"))?, job: number(env, "SLURM_JOB_ID")?.into() })
}

fn number(env: &dyn Fn(&str) -> Option<String>, name: &'static str) -> Result<u32> {
    let value = env(name).ok_or_else(|| {
        Error::new(format!("{name} is not in the environment"))
            .hint("this is for slurm.conf's Prolog= and Epilog=, or a script that they name")
    })?;
    value.parse().map_err(|_| Error::new(format!("{name} is not a number")).value(value))
}

fn read(record: &mut JobRecord, env: &dyn Fn(&str) -> Option<String>, checked: Checked) {
    // Present if anything of the credential is.
    let cpus_per_node = env("SLURM_JOB_CPUS_PER_NODE");
    let fact = |name| match env(name) {
        // What squeue prints for a missing value.
        Some(name) if name == "(null)" => Fact::Unknown,
        Some(name) if !name.is_empty() && is_name(&name) => Fact::Known(name),
        _ => Fact::Unknown,
    };
    record.partition = fact("SLURM_JOB_PARTITION");
    let account = match env("SLURM_JOB_ACCOUNT") {
        // Every release has the account in the credential, and exports it if there is one.
        None if cpus_per_node.is_some() => Fact::Known(String::new()),
        _ => fact("SLURM_JOB_ACCOUNT"),
    };
    record.account = account.if_checked(checked.account);
    record.qos = fact("SLURM_JOB_QOS").if_checked(checked.qos);
    // Until 23.02.5 only under its first name.
    let nodes = env("SLURM_JOB_NODELIST").or_else(|| env("SLURM_NODELIST"));
    record.cpus = cpus_per_node.and_then(|cpus| cpus_here(&cpus, nodes.as_deref(), env("SLURMD_NODENAME").as_deref()));
}

/// This node's number in a list with one for each node of the job, in their order (sbatch(1)).
///
/// Without `PrologFlags=Alloc` slurmd runs the prolog for the first step on the node, and the nodes are the step's (`_rpc_launch_tasks`,
/// src/slurmd/slurmd/req.c): if these are fewer, their positions are not those of the list.
fn cpus_here(cpus: &str, nodes: Option<&str>, node: Option<&str>) -> Option<u32> {
    let cpus = Repeated::parse(cpus)?;
    if let Some(each) = cpus.everywhere() {
        return Some(each);
    }
    let nodes = HostList::parse(nodes?).filter(|nodes| nodes.count() == cpus.count())?;
    cpus.nth(nodes.position(node?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_of(variables: &[(&str, &str)]) -> JobRecord {
        read_with(variables, Checked { account: true, qos: true })
    }

    fn read_with(variables: &[(&str, &str)], checked: Checked) -> JobRecord {
        let host = Host::read(&Config::default()).unwrap();
        let mut record = JobRecord::new(&host, None, 1);
        let env = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        read(&mut record, &env, checked);
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
    fn what_slurmctld_does_not_check_is_the_users_word() {
        let names = [("SLURM_JOB_PARTITION", "p"), ("SLURM_JOB_ACCOUNT", "a"), ("SLURM_JOB_QOS", "q")];
        let claimed = |text: &str| Fact::Claimed(text.to_owned());
        let record = read_with(&names, Checked::default());
        assert_eq!((record.partition, record.account, record.qos), (known("p"), claimed("a"), claimed("q")));
        let record = read_with(&names, Checked { account: true, qos: false });
        assert_eq!((record.account, record.qos), (known("a"), claimed("q")));
        // Leaving it out is the user's choice, too.
        let record = read_with(&[("SLURM_JOB_CPUS_PER_NODE", "1")], Checked::default());
        assert_eq!((record.account, record.qos), (claimed(""), Fact::Unknown));
    }

    #[test]
    fn what_slurmd_says_and_what_it_leaves_out() {
        let full = [
            ("SLURM_JOB_PARTITION", "gpu"),
            ("SLURM_JOB_ACCOUNT", "physics"),
            ("SLURM_JOB_CPUS_PER_NODE", "4(x2),1"),
            ("SLURM_NODELIST", "n[1-2],z"),
            ("SLURMD_NODENAME", "z"),
        ];
        let record = read_of(&full);
        assert_eq!((record.partition, record.account, record.qos), (known("gpu"), known("physics"), Fact::Unknown));
        assert_eq!(record.cpus, Some(1));
        // No credential.
        let record = read_of(&[("SLURM_JOB_PARTITION", "gpu"), ("SLURM_JOB_SLUID", "s1")]);
        assert_eq!((record.partition, record.account, record.qos), (known("gpu"), Fact::Unknown, Fact::Unknown));
        // An impossible name is not believed.
        assert_eq!(read_of(&[("SLURM_JOB_PARTITION", "a\nb")]).partition, Fact::Unknown);
    }

    /// What each release says about a job in the QOS `restricted` and the account `physics`, and about one with neither: every tag from
    /// 22.05.0 to 26.05.3, in `_build_env`.
    #[test]
    fn nothing_is_taken_for_none_in_any_release() {
        // Whether it exports the SLUID, and whether the QOS.
        for (release, has_sluid, has_qos) in [
            ("22.05", false, false),
            ("23.02", false, false),
            ("23.11", false, false),
            ("24.05", false, false),
            ("24.11", false, false),
            ("25.05", false, false),
            ("25.11", true, false),
            ("26.05", true, true),
            ("26.11", true, true),
        ] {
            let sluid = has_sluid.then_some(("SLURM_JOB_SLUID", "s1"));
            let usual = [("SLURM_JOB_PARTITION", "gpu"), ("SLURM_JOB_CPUS_PER_NODE", "2(x3)")];
            let usual: Vec<_> = usual.into_iter().chain(sluid).collect();
            let qos = has_qos.then_some(("SLURM_JOB_QOS", "restricted"));
            let named: Vec<_> = usual.iter().copied().chain([("SLURM_JOB_ACCOUNT", "physics")]).chain(qos).collect();
            let record = read_of(&named);
            let expected = if has_qos { known("restricted") } else { Fact::Unknown };
            assert_eq!((record.account, record.qos), (known("physics"), expected), "{release}");
            // The last case: a script asks for the QOS, and Slurm does not answer.
            for asked in [None, Some(("SLURM_JOB_QOS", ""))] {
                let record = read_of(&usual.iter().copied().chain(asked).collect::<Vec<_>>());
                assert_eq!((record.account, record.qos), (known(""), Fact::Unknown), "{release} {asked:?}");
            }
        }
    }

    #[test]
    fn an_empty_name_is_unknown() {
        let names = ["SLURM_JOB_PARTITION", "SLURM_JOB_ACCOUNT", "SLURM_JOB_QOS"].map(|name| (name, ""));
        let cpus = ("SLURM_JOB_CPUS_PER_NODE", "1");
        let record = read_of(&names.into_iter().chain([cpus]).collect::<Vec<_>>());
        assert_eq!((record.partition, record.account, record.qos), (Fact::Unknown, Fact::Unknown, Fact::Unknown));
    }

    #[test]
    fn cpus_are_this_nodes_or_nobodys() {
        for (cpus, nodes, node, expected) in [
            ("4(x2),1", Some("n[1-2],z"), Some("z"), Some(1)),
            ("4(x2),1", Some("n[1-2],z"), Some("n2"), Some(4)),
            // The nodes of a step, while the job has three.
            ("4(x2),1", Some("z"), Some("z"), None),
            ("1,4", Some("n2"), Some("n2"), None),
            ("4(x2),1", Some("n2,z"), Some("z"), None),
            ("4(x2),1", Some("n[1-4]"), Some("n1"), None),
            // All nodes have the same number, whichever this is.
            ("4", Some("n1"), Some("n1"), Some(4)),
            ("4(x2)", Some("n2"), Some("n2"), Some(4)),
            ("4(x2)", None, None, Some(4)),
            // A node that is not in the list, and input that cannot be read.
            ("4,1", Some("a,b"), Some("c"), None),
            ("4,1", Some("a,b"), None, None),
            ("4,1", None, Some("a"), None),
            ("4,1", Some("a[,b"), Some("b"), None),
            ("4,x", Some("a,b"), Some("a"), None),
            ("", Some("a"), Some("a"), None),
        ] {
            assert_eq!(cpus_here(cpus, nodes, node), expected, "{cpus} {nodes:?} {node:?}");
        }
    }
}
