// SPDX-License-Identifier: GPL-2.0-or-later
//! What a site should know of its HTCondor: a line for each point of "What changes for your site" (docs/install/htcondor.md) that the
//! configuration shows.

use std::path::Path;

use jobfence::config::Loaded;
use jobfence::requests;
use jobfence::schedulers::htcondor::{asked, environment};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use crate::check::daemon::{DaemonKind, SchedulerDaemon, is_ours, not_ours};
use crate::check::private;
use crate::check::rows::Rows;
use crate::check::verdict::Verdict;

/// The daemon of a host that runs jobs.
pub const STARTD: DaemonKind = DaemonKind { program: "condor_startd", variables: &["CONDOR_CONFIG"] };

/// The daemon of a host from which jobs are submitted.
pub const SCHEDD: DaemonKind = DaemonKind { program: "condor_schedd", ..STARTD };
/// The name of the link under which jobfence runs a job and writes its card.
const WRAPPER: &str = "htcondor-job";
/// The settings that are looked up for the starters.
const OF_STARTER: [&str; 8] = [
    "USER_JOB_WRAPPER",
    "STARTD_JOB_ATTRS",
    "CGROUP_MEMORY_LIMIT_POLICY",
    "EXECUTE",
    environment::LINE,
    "STARTER_JOB_HOOK_KEYWORD",
    "STARTER_DEFAULT_JOB_HOOK_KEYWORD",
    "VM_TYPE",
];
/// The settings that are looked up for the schedd.
const OF_SCHEDD: [&str; 2] = ["START_SCHEDULER_UNIVERSE", "QUEUE_SUPER_USERS"];
/// The attributes that tell jobfence more of a job's user and account, if the slot's ad has them.
pub const WHOSE: [&str; 3] = ["AcctGroup", "OsUser", "RunAsOwner"];

/// Says whether the startd starts jobs by this program, and what else of jobfence its configuration has.
pub fn look(startd: &SchedulerDaemon, loaded: &Loaded, rows: &mut Rows, verdict: &mut Verdict) {
    private::refuse(
        loaded,
        "HTCondor",
        "HTCondor itself starts the job's processes, and has MOUNT_UNDER_SCRATCH and MOUNT_PRIVATE_DEV_SHM for directories",
        rows,
        verdict,
    );
    match startd.ask(&["condor_config_val", "STARTER"]) {
        Ok(starter) => {
            let starter = starter.trim();
            let why = not_ours(starter);
            let text = format!("STARTER is {starter}");
            if why.is_some() {
                rows.fault("htcondor", text)
            } else {
                rows.fact("htcondor", text)
            }
            if let Some(why) = why {
                verdict.no(format!("NO job would be fenced here: STARTER of HTCondor is {starter}, {why}"));
            }
        }
        Err(why) => {
            rows.fault("htcondor", format!("what its configuration says is not known: {why}"));
            verdict.unknown("NO job is known to be fenced here: HTCondor does not say what starts its jobs".to_owned());
        }
    }
    if !rows.are_wanted() {
        return;
    }
    let list = startd.ask(&["condor_config_val", "STARTD_CRON_JOBLIST"]).unwrap_or_default();
    let has_ours = |name: &str| {
        let key = format!("STARTD_CRON_{name}_EXECUTABLE");
        startd.ask(&["condor_config_val", &key]).is_ok_and(|program| not_ours(program.trim()).is_none())
    };
    let mut names = list.split(|c: char| c == ',' || c.is_whitespace()).filter(|name| !name.is_empty());
    match names.find(|name| has_ours(name)) {
        Some(name) => rows.fact("htcondor", format!("STARTD_CRON_JOBLIST has {name}")),
        None => rows.remark(
            "htcondor",
            "STARTD_CRON_JOBLIST has no jobfence: the slots do not say what jobs can have of this host",
        ),
    }
    match startd.ask(&["condor_config_val", "START"]) {
        Ok(start) if start.to_ascii_lowercase().contains("jobfencehealthy") => rows.fact("htcondor", "START asks for JobfenceHealthy"),
        Ok(_) => rows.remark("htcondor",
            "START does not ask for JobfenceHealthy: where this host can fence no job, it puts one after the other on hold",
        ),
        Err(_) => {}
    }
    let in_cgroups = startd.ask(&["condor_config_val", "CGROUP_ALL_DAEMONS"]).unwrap_or_default();
    if ["true", "yes", "t", "y", "1"].iter().any(|yes| in_cgroups.trim().eq_ignore_ascii_case(yes)) {
        rows.remark("htcondor",
            "CGROUP_ALL_DAEMONS is on: CpusUsage and CondorLoadAvg of the slots do not have the load of jobs, and a policy by \
             NonCondorLoadAvg takes it for others'",
        );
    }
    docker_universe(startd, rows);
}

/// Says whether containers are fenced. Not part of the verdict: few sites have such jobs, and other jobs are fenced without it. Without
/// Docker nothing is printed.
fn docker_universe(startd: &SchedulerDaemon, rows: &mut Rows) {
    let Ok(client) = startd.ask(&["condor_config_val", "DOCKER"]) else { return };
    let client = client.trim();
    // The starter's configuration may run the client through sudo(8).
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
    let text = format!("DOCKER is {client}{unless}");
    if unless.is_empty() { rows.fact("htcondor", text) } else { rows.remark("htcondor", text) }
}

/// Says whether jobs of the local universe are fenced. Not part of the verdict: few sites have such jobs, and each job of a slot is
/// fenced without it.
pub fn local_universe(schedd: &SchedulerDaemon, rows: &mut Rows) {
    let Ok(starter) = schedd.ask(&["condor_config_val", "STARTER_LOCAL"]) else { return };
    let starter = starter.trim();
    let unless = not_ours(starter).map(|why| format!(", {why}: jobs of the local universe are not fenced"));
    match unless {
        None => rows.fact("htcondor", format!("STARTER_LOCAL is {starter}")),
        Some(unless) => rows.remark("htcondor", format!("STARTER_LOCAL is {starter}{unless}")),
    }
}

/// Says what the startd's jobs get, and what they lack.
pub fn of_startd(startd: &SchedulerDaemon, rows: &mut Rows) {
    let is_tmpfs = |path: &str| statfs(Path::new(path)).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC);
    said(rows, startd, "STARTER", &OF_STARTER, |value| starter_lines(value, is_tmpfs));
}

/// Says what the schedd runs by itself.
pub fn of_schedd(schedd: &SchedulerDaemon, rows: &mut Rows) {
    said(rows, schedd, "SCHEDD", &OF_SCHEDD, schedd_lines);
}

fn said(
    rows: &mut Rows,
    daemon: &SchedulerDaemon,
    subsystem: &str,
    keys: &[&str],
    lines: impl FnOnce(&dyn Fn(&str) -> String) -> Vec<String>,
) {
    let mut words = ["condor_config_val", "-subsystem", subsystem, "-macro"].map(str::to_owned).to_vec();
    words.extend(keys.iter().map(|key| format!("{key} = $({key})")));
    let answer = daemon.ask(&words.iter().map(String::as_str).collect::<Vec<_>>());
    match answer {
        Ok(answer) => lines(&|key| value_in(&answer, key)).iter().for_each(|line| rows.remark("htcondor", line)),
        Err(why) => rows.remark("htcondor", format!("what changes for this site is not known: {why}")),
    }
}

pub fn value_in(answer: &str, key: &str) -> String {
    let mut pairs = answer.lines().filter_map(|line| line.split_once('='));
    let found = pairs.rfind(|(found, _)| found.trim() == key);
    found.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}

fn starter_lines(value: &dyn Fn(&str) -> String, is_tmpfs: impl Fn(&str) -> bool) -> Vec<String> {
    let mut lines = Vec::new();
    let wrapper = value("USER_JOB_WRAPPER");
    let is_link = Path::new(&wrapper).file_name().is_some_and(|name| name == WRAPPER);
    lines.push(match (wrapper.as_str(), is_link) {
        ("", _) => "USER_JOB_WRAPPER is not set: no job ends with a card".to_owned(),
        (wrapper, true) if Path::new(wrapper).exists() => format!("USER_JOB_WRAPPER is {wrapper}"),
        (wrapper, true) => format!("USER_JOB_WRAPPER is {wrapper}, and no such file is here: no job can start"),
        (wrapper, false) if is_ours(wrapper) => {
            format!("USER_JOB_WRAPPER is {wrapper}: it runs jobs only by a link of the name {WRAPPER}")
        }
        (wrapper, false) => {
            format!("USER_JOB_WRAPPER is {wrapper}: a job ends with a card only if that runs {WRAPPER}")
        }
    });
    let attributes = value("STARTD_JOB_ATTRS").to_ascii_lowercase();
    let has = |name: &str| attributes.split([',', ' ']).any(|found| found == name.to_ascii_lowercase());
    let unheard: Vec<String> = requests::everywhere().map(asked::attribute).filter(|name| !has(name)).collect();
    if !unheard.is_empty() {
        lines.push(format!(
            "STARTD_JOB_ATTRS has no {}: what a job of a slot asks for by it is not heard",
            unheard.join(", ")
        ));
    }
    let unknown: Vec<&str> = WHOSE.into_iter().filter(|name| !has(name)).collect();
    if !unknown.is_empty() {
        lines.push(format!("STARTD_JOB_ATTRS has no {}: whose job it is can be uncertain", unknown.join(", ")));
    }
    let policy = value("CGROUP_MEMORY_LIMIT_POLICY").to_ascii_lowercase();
    if ["custom", "soft"].contains(&policy.as_str()) {
        lines.push(format!("CGROUP_MEMORY_LIMIT_POLICY is {policy}: HTCondor alone limits the memory of its jobs"));
    }
    let execute = value("EXECUTE");
    if is_tmpfs(&execute) {
        lines.push(format!("EXECUTE is {execute}, in a tmpfs: the starter has the size of that beside StarterMemory"));
    }
    if let Err(error) = environment::with(&value(environment::LINE), &[]) {
        lines.push(format!("{error}: jobs have no variables of jobfence, and no card"));
    }
    let keywords = ["STARTER_JOB_HOOK_KEYWORD", "STARTER_DEFAULT_JOB_HOOK_KEYWORD"];
    lines.extend(
        keywords.into_iter().filter(|key| !value(key).is_empty()).map(|key| {
            format!("{key} is {}: before 24.8, HTCondor makes no cgroup for jobs with such hooks", value(key))
        }),
    );
    let machines = value("VM_TYPE");
    if !machines.is_empty() {
        lines.push(format!("VM_TYPE is {machines}: jobs of the VM universe are NOT fenced, since libvirt starts them"));
    }
    lines
}

fn schedd_lines(value: &dyn Fn(&str) -> String) -> Vec<String> {
    let start = value("START_SCHEDULER_UNIVERSE");
    let is_off = start.eq_ignore_ascii_case("false");
    let universe = if is_off {
        "START_SCHEDULER_UNIVERSE is False: no job of the scheduler universe runs, and so no DAGMan".to_owned()
    } else {
        format!(
            "START_SCHEDULER_UNIVERSE is {start}: what runs by it, such as DAGMan, is NOT fenced, since the schedd itself is what starts it"
        )
    };
    let users = value("QUEUE_SUPER_USERS");
    let has_root = users.split([',', ' ']).any(|user| user == "root" || user.starts_with("root@"));
    let reason = (!has_root).then(|| {
        format!("QUEUE_SUPER_USERS is {users}, without root: condor_q -hold does not name the process that took too much memory")
    });
    [Some(universe), reason].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_starter(answer: &str) -> Vec<String> {
        starter_lines(&|key| value_in(answer, key), |path| path == "/dev/shm")
    }

    #[test]
    fn each_thing_that_changes_is_said() {
        let stock = of_starter("EXECUTE = /var/lib/condor/execute\nCGROUP_MEMORY_LIMIT_POLICY = hard\n").join("\n");
        assert!(stock.contains("no job ends with a card"), "{stock}");
        assert!(
            stock.contains("no JobfenceCpuLimit, ") && stock.contains("no AcctGroup, OsUser, RunAsOwner"),
            "{stock}"
        );
        assert_eq!(stock.lines().count(), 3, "{stock}");
        let all = requests::everywhere().map(asked::attribute).collect::<Vec<_>>().join(" ");
        let attributes = format!("STARTD_JOB_ATTRS = {all} acctgroup,OsUser RunAsOwner\n");
        let quiet = of_starter(&format!("USER_JOB_WRAPPER = /etc/wrapper\n{attributes}"));
        assert_eq!(quiet, ["USER_JOB_WRAPPER is /etc/wrapper: a job ends with a card only if that runs htcondor-job"]);
        for (line, what) in [
            ("USER_JOB_WRAPPER = /no/htcondor-job", "no such file is here"),
            ("USER_JOB_WRAPPER = /sbin/jobfence", "only by a link of the name"),
            ("CGROUP_MEMORY_LIMIT_POLICY = Soft", "HTCondor alone limits"),
            ("EXECUTE = /dev/shm", "in a tmpfs"),
            ("VM_TYPE = kvm", "VM universe are NOT fenced"),
            ("STARTER_JOB_ENVIRONMENT = \"A=$$(B)\"", "no variables of jobfence"),
            ("STARTER_DEFAULT_JOB_HOOK_KEYWORD = X", "before 24.8"),
        ] {
            let lines = of_starter(&format!("{attributes}{line}\n")).join("\n");
            assert!(lines.contains(what), "{line}: {lines}");
        }
    }

    #[test]
    fn what_the_schedd_runs_by_itself_is_said() {
        let of_schedd = |answer: &str| schedd_lines(&|key| value_in(answer, key));
        let lines =
            of_schedd("START_SCHEDULER_UNIVERSE = TotalSchedulerJobsRunning < 500\nQUEUE_SUPER_USERS = root, condor\n");
        assert!(lines.len() == 1 && lines.concat().contains("NOT fenced"), "{lines:?}");
        let lines = of_schedd("START_SCHEDULER_UNIVERSE = False\nQUEUE_SUPER_USERS = condor\n").concat();
        assert!(lines.contains("no DAGMan") && lines.contains("without root"), "{lines}");
    }
}
