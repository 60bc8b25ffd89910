// SPDX-License-Identifier: GPL-2.0-or-later
//! The reason of a hold. HTCondor holds a job that ran out of memory, and does not say which process used the memory. For a job of the
//! local universe it even names a limit of 0 megabytes, because without a slot it knows no limit. A schedd on this host lets root replace
//! that reason by jobfence's sentences.
//!
//! The schedd of a job with a slot can be on another host, where root of this host has no rights. Such a schedd is not asked. The job's
//! user can change the text that names the schedd. So root connects only to a daemon of HTCondor's on this host.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use jobfence::job::Id;
use jobfence::schedulers::htcondor::query::Address;
use jobfence::schedulers::htcondor::quoted;
use jobfence::sys::program::AskedProgram;
use nix::unistd::geteuid;

use super::job::beside_daemon;
use super::startd::is_daemons;

/// HTCondor's command that edits jobs. With a constraint it changes the jobs that match at that moment, and fails if none does.
const EDIT: &str = "condor_qedit";
/// HTCondor's command that knows the addresses of schedds, in the same directory.
const STATUS: &str = "condor_status";
/// The variable with the path of condor_qedit.
const PROGRAM: &str = "JOBFENCE_QEDIT";
/// The variable with the job's `GlobalJobId`.
const JOB: &str = "JOBFENCE_GLOBAL_JOB";
/// The variable with the schedd's address or name: a host can have several schedds.
const SCHEDD: &str = "JOBFENCE_SCHEDD";
/// The variable with the number of the user that owns the sockets of HTCondor's daemons.
const OWNER: &str = "JOBFENCE_SOCKETS_OWNER";
/// The variable by which HTCondor's commands find their configuration.
const CONFIGURATION: &str = "CONDOR_CONFIG";
/// The seconds before each try. The schedd puts the job on hold when it has seen the starter's end. If the job is not put on hold, each try
/// fails. So the tries are few: the schedd serves all users.
const PAUSES: [u64; 4] = [1, 2, 4, 8];
/// How long one try may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The environment with which the watcher can tell a schedd why the job is on hold. `owner`: the user that owns the sockets of HTCondor's
/// daemons.
pub fn environment(global_job: &str, schedd: &str, owner: u32) -> Vec<CString> {
    let program = beside_daemon(EDIT).into_os_string();
    let configuration = std::env::var_os(CONFIGURATION);
    let all = [
        (PROGRAM, Some(program)),
        (JOB, Some(OsString::from(global_job))),
        (SCHEDD, Some(OsString::from(schedd))),
        (OWNER, Some(OsString::from(owner.to_string()))),
        (CONFIGURATION, configuration),
    ];
    let line = |(name, value): (&str, Option<OsString>)| {
        CString::new([name.as_bytes(), b"=", value?.as_bytes()].concat()).ok()
    };
    all.into_iter().filter_map(line).collect()
}

/// In the watcher: has the schedd give these sentences as the reason, if the job is on hold because it ran out of memory.
pub fn say(job: &Id, sentences: &[String]) {
    let (Some(program), Ok(global_job)) = (std::env::var_os(PROGRAM), std::env::var(JOB)) else { return };
    let (Ok(schedd), Ok(owner)) = (std::env::var(SCHEDD), std::env::var(OWNER)) else { return };
    let Ok(owner) = owner.parse() else { return };
    if sentences.is_empty() || !geteuid().is_root() {
        return;
    }
    let silent = |why: &str| log::info!("job {job}: condor_q -hold does not say why it was killed: {why}");
    let Some(schedd) = address_of(Path::new(&program), &schedd).and_then(|address| checked(&address, owner)) else {
        return silent("it is not certain that a schedd of this host has the address of the job's");
    };
    let mut why = String::new();
    for pause in PAUSES {
        std::thread::sleep(Duration::from_secs(pause));
        // `-name` takes an address, too (`Daemon::Daemon`, the same in 23.9 and 25.14).
        let (which, sentence) = (constraint(job, &global_job), quoted(&sentences.join(" ")));
        let words = ["-name", &schedd, "-constraint", &which, "HoldReason", &sentence];
        match AskedProgram::new(&program, &words, &[CONFIGURATION]).ask(Instant::now() + PATIENCE) {
            Ok(_) => return,
            Err(silence) => why = format!("{EDIT}: {}", silence.to_string().replace('\n', "; ")),
        }
    }
    silent(&why);
}

/// The address of a schedd, which the collector tells for a name. With a name, HTCondor's commands would look up the host first, and fail
/// if the pool has other names of hosts.
fn address_of(program: &Path, schedd: &str) -> Option<String> {
    if schedd.starts_with('<') {
        return Some(schedd.to_owned());
    }
    let which = format!("Name == {}", quoted(schedd));
    let words = ["-schedd", "-constraint", &which, "-af", "MyAddress"];
    let asked = AskedProgram::new(program.with_file_name(STATUS), &words, &[CONFIGURATION]);
    let said = asked.ask(Instant::now() + PATIENCE).ok()?;
    said.lines().next().map(str::trim).filter(|address| address.starts_with('<')).map(str::to_owned)
}

/// The address, if it is that of a daemon of HTCondor's on this host, without what could lead elsewhere: `addrs` can name another port for
/// HTCondor to use.
fn checked(address: &str, owner: u32) -> Option<String> {
    Address::parse(address).filter(|address| is_daemons(address, owner)).map(|address| address.to_string())
}

/// Selects the job while it is on hold because it ran out of memory. The job's user can set `GlobalJobId` to another job's, but not the
/// numbers.
fn constraint(job: &Id, global_job: &str) -> String {
    let (cluster, process) = job.as_str().split_once('.').unwrap_or_default();
    format!(
        "ClusterId == {cluster} && ProcId == {process} && GlobalJobId == {} && JobStatus == 5 && \
         HoldReasonCode == 34",
        quoted(global_job)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_that_job_is_changed_while_it_is_on_hold() {
        let expected = "ClusterId == 12 && ProcId == 3 && GlobalJobId == \"node1#12.3#17 || \\\"\" && JobStatus == 5 && HoldReasonCode == 34";
        assert_eq!(constraint(&Id::new("12.3").unwrap(), "node1#12.3#17 || \""), expected);
    }

    #[test]
    fn root_talks_to_no_users_program() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, this_user) = (listener.local_addr().unwrap().port(), geteuid().as_raw());
        let address = format!("<127.0.0.1:{port}?addrs=127.0.0.1-1&alias=n&noUDP&sock=schedd_7_1>");
        assert_eq!(checked(&address, this_user), Some(format!("<127.0.0.1:{port}?sock=schedd_7_1>")));
        assert_eq!(checked(&format!("<127.0.0.1:{port}>"), this_user), Some(format!("<127.0.0.1:{port}>")));
        assert_eq!(checked(&address.replace("127.0.0.1:", "192.0.2.77:"), this_user), None, "another host");
        assert_eq!(checked(&address.replace("_7_1", "_7%26"), this_user), None, "what is not understood");
        drop(listener);
        assert_eq!(checked(&address, this_user), None, "nobody listens there");
    }

    #[test]
    fn the_watcher_gets_the_jobs_name() {
        let all = environment("node1#12.3#17", "<127.0.0.1:9618?sock=schedd_7>", 121);
        assert!(all.iter().any(|line| line.as_bytes() == b"JOBFENCE_SOCKETS_OWNER=121"), "{all:?}");
        assert!(all.iter().any(|line| line.as_bytes() == b"JOBFENCE_SCHEDD=<127.0.0.1:9618?sock=schedd_7>"), "{all:?}");
        assert!(all.iter().any(|line| line.as_bytes() == b"JOBFENCE_GLOBAL_JOB=node1#12.3#17"), "{all:?}");
        assert!(all.iter().any(|line| line.as_bytes().ends_with(b"condor_qedit")), "{all:?}");
        assert_eq!(environment("a\0b", "<>", 0).len(), all.len() - 1);
    }
}
