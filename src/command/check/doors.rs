// SPDX-License-Identifier: GPL-2.0-or-later
//! Whether the daemons of Grid Engine and of HTCondor that run here start jobs by this program, according to their configuration, and what
//! a site should know about OpenPBS.

use std::path::Path;

use jobfence::config::Loaded;
use jobfence::facts::{Fact, Facts};
use jobfence::schedulers::pbs;
use jobfence::schedulers::slurm::conf::{Checked, Lines};
use jobfence::sys::dir::Dir;

use super::daemon::{SchedulerDaemon, is_ours, not_ours};
use super::verdict::Verdict;
use crate::host;
use crate::schedulers::pbs::mom::{self, ForMom, MomSays};
use crate::schedulers::{gridengine, htcondor};

/// The schedulers whose users write facts that sections depend on: daemon, name, kinds of sections, and what makes the facts count.
const CLAIMED: [(&str, &str, &[&str], &str); 3] = [
    ("sge_execd", "Grid Engine", &["[Account="], "set TrustAccount=yes if a JSV checks it"),
    ("pbs_mom", "OpenPBS", &["[Account=", "[Project="], "set TrustAccount=yes if a hook of the server checks it"),
    ("condor_startd", "HTCondor", &["[Account="], "set TrustAccount=yes if the schedd checks it"),
];

/// A job's facts from the options: under a scheduler that runs here, facts that the job's user would write are only claims.
pub fn of_user(proc: &Dir, facts: Facts) -> Facts {
    let here = CLAIMED.iter().filter(|(daemon, ..)| SchedulerDaemon::find(proc, daemon).is_some());
    as_claimed(&here.flat_map(|(_, _, kinds, _)| kinds.iter().copied()).collect::<Vec<_>>(), facts)
}

fn as_claimed(kinds: &[&str], facts: Facts) -> Facts {
    let claim = |kind: &str, fact: Fact<String>| match fact {
        Fact::Known(text) if kinds.contains(&kind) => Fact::Claimed(text),
        fact => fact,
    };
    let (account, project) = (claim("[Account=", facts.account), claim("[Project=", facts.project));
    Facts { account, project, ..facts }
}

/// Prints the findings, and adds to the verdict why no job would be fenced. `pam`: where PAM's services are configured, and jobfence's
/// line.
pub fn look(proc: &Dir, loaded: &Loaded, slurm_conf: Option<&Path>, pam: (&Path, &str), verdict: &mut Verdict) {
    for (daemon, scheduler, kinds, remedy) in CLAIMED {
        if SchedulerDaemon::find(proc, daemon).is_some() {
            claimed(loaded, scheduler, kinds, remedy);
        }
    }
    if let Some(file) = slurm_conf {
        let Checked { account, qos } = Checked::by(&Lines::read(file));
        let kinds = [("[Account=", account), ("[QOS=", qos)].into_iter().filter(|(_, is_checked)| !is_checked);
        let kinds: Vec<&str> = kinds.map(|(kind, _)| kind).collect();
        claimed(loaded, "Slurm", &kinds, ENFORCE);
    }
    if let Some(execd) = SchedulerDaemon::find(proc, "sge_execd") {
        gridengine::check::look(&execd, loaded, pam, host::too_much, verdict);
    }
    if let Some(mom) = SchedulerDaemon::find(proc, "pbs_mom") {
        openpbs(&mom, loaded, verdict);
    }
    if let Some(startd) = SchedulerDaemon::find(proc, "condor_startd") {
        htcondor(&startd, verdict);
        htcondor::check::of_startd(&startd);
    }
    if let Some(schedd) = SchedulerDaemon::find(proc, "condor_schedd") {
        local_universe(&schedd);
        htcondor::check::of_schedd(&schedd);
    }
}

/// What makes the facts count under Slurm.
const ENFORCE: &str = "have slurmctld check it (AccountingStorageEnforce=associations,qos in slurm.conf), or set TrustAccount=yes if a \
                       job_submit plugin does";

/// Prints the sections that a job's user could choose.
fn claimed(loaded: &Loaded, scheduler: &str, kinds: &[&str], remedy: &str) {
    let of_kind = |header: &&str| kinds.iter().any(|kind| header.starts_with(kind));
    let headers: Vec<&str> = loaded.sections().map(|(header, _)| header).filter(of_kind).collect();
    if headers.is_empty() {
        return;
    }
    let headers = headers.join(", ");
    if loaded.config.trust_account {
        println!("sections       TrustAccount=yes: under {scheduler} a job's user chooses {headers}");
    } else {
        println!(
            "sections       under {scheduler} a job's user writes what {headers} ask for, so each job has the strictest of \
             what could hold; {remedy}"
        );
    }
}

/// MoM works in `mom_priv` of the directory that it was started with.
fn openpbs(mom: &SchedulerDaemon, loaded: &Loaded, verdict: &mut Verdict) {
    let say = |what: &str| println!("openpbs        {what}");
    let Some(home) = mom.cwd.parent().filter(|_| mom.cwd.ends_with("mom_priv")) else { return };
    let conf = ForMom {
        file: loaded.file.as_deref(),
        sections: loaded.sections().map(|(header, _)| header).collect(),
        has_gpus: loaded.config.gpu_device.is_some(),
    };
    for said in mom::lines(&mom.cwd, &conf) {
        match said {
            MomSays::Fact(what) | MomSays::Hint(what) => say(&what),
            MomSays::Fault(what) => {
                say(&what);
                verdict.no(format!("NO job would be fenced here by OpenPBS: {what}"));
            }
        }
    }
    let configured = pbs::configured_home().and_then(|home| std::fs::canonicalize(home).ok());
    if configured.as_deref() != Some(home) {
        say(&format!(
            "MoM's directory is {}, which PBS's configuration does not name: jobfence.service removes no fence of its jobs, \
             and the hook alone does",
            home.display()
        ));
    }
}

fn htcondor(startd: &SchedulerDaemon, verdict: &mut Verdict) {
    let say = |what: &str| println!("htcondor       {what}");
    match startd.ask(&["condor_config_val", "STARTER"]) {
        Ok(starter) => {
            let starter = starter.trim();
            say(&format!("STARTER is {starter}"));
            if let Some(why) = not_ours(starter) {
                verdict.no(format!("NO job would be fenced here: STARTER of HTCondor is {starter}, {why}"));
            }
        }
        Err(why) => {
            say(&format!("what its configuration says is not known: {why}"));
            verdict.no("NO job is known to be fenced here: HTCondor does not say what starts its jobs".to_owned());
        }
    }
    let list = startd.ask(&["condor_config_val", "STARTD_CRON_JOBLIST"]).unwrap_or_default();
    let has_ours = |name: &str| {
        let key = format!("STARTD_CRON_{name}_EXECUTABLE");
        startd.ask(&["condor_config_val", &key]).is_ok_and(|program| not_ours(program.trim()).is_none())
    };
    let mut names = list.split(|c: char| c == ',' || c.is_whitespace()).filter(|name| !name.is_empty());
    match names.find(|name| has_ours(name)) {
        Some(name) => say(&format!("STARTD_CRON_JOBLIST has {name}")),
        None => say("STARTD_CRON_JOBLIST has no jobfence: the slots do not say what jobs can have of this host"),
    }
    match startd.ask(&["condor_config_val", "START"]) {
        Ok(start) if start.to_ascii_lowercase().contains("jobfencehealthy") => say("START asks for JobfenceHealthy"),
        Ok(_) => say(
            "START does not ask for JobfenceHealthy: where this host can fence no job, it puts one after the other on hold",
        ),
        Err(_) => {}
    }
    let in_cgroups = startd.ask(&["condor_config_val", "CGROUP_ALL_DAEMONS"]).unwrap_or_default();
    if ["true", "yes", "t", "y", "1"].iter().any(|yes| in_cgroups.trim().eq_ignore_ascii_case(yes)) {
        say(
            "CGROUP_ALL_DAEMONS is on: CpusUsage and CondorLoadAvg of the slots do not have the load of jobs, and a policy by \
             NonCondorLoadAvg takes it for others'",
        );
    }
    docker_universe(startd);
}

/// Not part of the verdict: few sites have such jobs, and other jobs are fenced without it. Without Docker nothing is printed.
fn docker_universe(startd: &SchedulerDaemon) {
    let Ok(client) = startd.ask(&["condor_config_val", "DOCKER"]) else { return };
    let client = client.trim();
    // Behind sudo(8), as in the starter's configuration.
    let path = client.strip_prefix("sudo ").unwrap_or(client).trim_start();
    let Ok(real) = std::fs::canonicalize(path) else { return };
    let unless = if !(is_ours(path) || real.ends_with("jobfence")) {
        ": containers of the Docker universe are not fenced".to_owned()
    } else if Path::new(path).file_name().is_none_or(|name| name != "docker") {
        ": it is Docker's client only by a link of the name docker".to_owned()
    } else {
        match startd.ask(&[path, "info", "--format", "{{.CgroupDriver}}"]) {
            Ok(driver) if driver.trim() == "cgroupfs" => String::new(),
            Ok(driver) => {
                format!(": jobs of the Docker universe are refused, since Docker's cgroup driver is {}", driver.trim())
            }
            Err(why) => format!(": Docker does not say whether its containers can be fenced: {why}"),
        }
    };
    println!("htcondor       DOCKER is {client}{unless}");
}

/// Not part of the verdict: few sites have such jobs, and each job of a slot is fenced without it.
fn local_universe(schedd: &SchedulerDaemon) {
    let Ok(starter) = schedd.ask(&["condor_config_val", "STARTER_LOCAL"]) else { return };
    let starter = starter.trim();
    let unless = not_ours(starter).map(|why| format!(", {why}: jobs of the local universe are not fenced"));
    println!("htcondor       STARTER_LOCAL is {starter}{}", unless.unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_writes_is_claimed_where_the_door_takes_it_so() {
        let known = |name: &str| Fact::Known(name.to_owned());
        let said = || Facts { account: known("a"), project: known("p"), partition: known("q"), ..Facts::default() };
        let facts = |kinds: &[&str]| {
            let facts = as_claimed(kinds, said());
            assert_eq!(facts.partition, known("q"));
            (facts.account, facts.project)
        };
        let claimed = |name: &str| Fact::Claimed(name.to_owned());
        assert_eq!(facts(&[]), (known("a"), known("p")));
        for (daemon, _, kinds, _) in CLAIMED {
            let project = if daemon == "pbs_mom" { claimed("p") } else { known("p") };
            assert_eq!(facts(kinds), (claimed("a"), project), "{daemon}");
        }
        assert_eq!(as_claimed(&["[Account="], Facts::default()).account, Fact::Unknown);
    }
}
