// SPDX-License-Identifier: GPL-2.0-or-later
//! qmaster's commands about one job.

use std::time::Instant;

use jobfence::sys::dir::Dir;
use jobfence::sys::process;
use nix::unistd::{User, getppid};

use super::queued::{self, QmasterJob};
use crate::again::AgainTrouble;
use crate::check::daemon::SchedulerDaemon;
use crate::schedulers::gridengine::check::EXECD;

/// How a line begins with which qmaster refuses for good (`msg_qmaster.h`, `msg_common.h` and `msg_sgeobjlib.h` of 8.1.9, and `msg_qsub.h`
/// before another one). Any other failure may pass: also `job ... was rejected because it couldn't be written` of a full disk.
const REFUSALS: [&str; 3] =
    ["denied: ", "Unable to run job: denied: ", "rejected due to jsv_allowed_mod configuration"];

/// How a line ends with which qmaster says that no host can give what is asked for (`-w e`).
const NO_QUEUES: &str = ": no suitable queues";

/// Words of a line that begins like a refusal and may be of a fault that passes: of a JSV that is busy, of the connection, of a disk, of
/// another release during an update, or of a ticket.
const PASSING: [&str; 6] = ["temporarily", "commlib", "written", "ermission", "GDI version", "credentials"];

/// qmaster, as execd's environment names it.
pub struct Qmaster {
    execd: SchedulerDaemon,
    deadline: Instant,
}

impl Qmaster {
    /// That of the execd that has started this program, or else of the one that runs here.
    pub fn find(deadline: Instant) -> Result<Self, String> {
        let proc = Dir::open("/proc").map_err(|error| error.to_string())?;
        let parent = getppid().as_raw();
        let is_execd = process::name(&proc, parent).is_some_and(|name| name == EXECD.program);
        let execd = if is_execd {
            Some(SchedulerDaemon::from_pid(&proc, parent, EXECD))
        } else {
            SchedulerDaemon::find(&proc, EXECD)
        };
        Ok(Self { execd: execd.ok_or("no execd runs here, whose environment names qmaster")?, deadline })
    }

    /// What a command prints.
    pub fn ask(&self, argv: &[&str]) -> Result<String, String> {
        self.execd.ask_by(argv, self.deadline)
    }

    /// A job. `None`: qmaster does not know it.
    pub fn job(&self, number: &str) -> Result<Option<QmasterJob>, String> {
        queued::parse(&self.ask(&["qstat", "-xml", "-j", number])?)
    }

    /// Has a command bear this user's name. Returns what it says.
    pub fn tell(&self, uid: u32, argv: &[&str]) -> Result<String, AgainTrouble> {
        self.tell_by(uid, argv, self.deadline)
    }

    /// The same, by a deadline of its own.
    pub fn tell_by(&self, uid: u32, argv: &[&str], deadline: Instant) -> Result<String, AgainTrouble> {
        let user = User::from_uid(uid.into()).ok().flatten();
        // A name service can fail for a moment, and then knows nobody.
        let user = user.ok_or_else(|| AgainTrouble::Unknown("its user is not known on this host".to_owned()))?;
        let ids = (user.uid.as_raw(), user.gid.as_raw());
        match self.execd.ask_as(argv, ids, deadline) {
            Ok((true, said)) => Ok(said),
            Ok((false, said)) => {
                let why = format!("{}: {said}", argv.first().copied().unwrap_or_default());
                Err(if is_refusal(&said) { AgainTrouble::Refused(why) } else { AgainTrouble::Unknown(why) })
            }
            Err(why) => Err(AgainTrouble::Unknown(why)),
        }
    }
}

/// Whether a command says that qmaster refuses, and will refuse it again. Lines are separated as in what `ask_as` returns.
fn is_refusal(said: &str) -> bool {
    // The name is that of the script, or of its place.
    let is_jsvs = |line: &str| {
        line.strip_prefix("JSV ").is_some_and(|rest| rest == "rejected job" || rest.contains("\" rejected job"))
    };
    said.split("; ").any(|line| {
        let is_one = REFUSALS.iter().any(|words| line.starts_with(words)) || line.ends_with(NO_QUEUES) || is_jsvs(line);
        is_one && !PASSING.iter().any(|words| line.contains(words))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_qmaster_refuses_for_good_is_a_refusal() {
        for said in [
            "denied: host \"node1\" is not a submit host",
            "denied: \"alice\" must be manager for this operation",
            "denied: former resource request on consumable \"h_rss\" of running job missing in new resource request",
            "Unable to run job: denied: host \"node1\" is not a submit host",
            "error: no suitable queues",
            "(-l h_rss=9G) cannot run in queue \"all.q@node1\"; error: no suitable queues",
            "rejected due to jsv_allowed_mod configuration which does not allow: l_hard",
            "JSV rejected job",
            "JSV \"/opt/site/jsv.sh\" rejected job",
            "JSV \"/opt/site/jsv.sh\" rejected job 7",
        ] {
            assert!(is_refusal(said), "{said}");
        }
        for said in [
            "",
            "JSV temporarily rejected job",
            "JSV \"/opt/site/temporarily\" rejected job",
            "alteration of job 7 was rejected because it couldn't be written",
            "job 7 was rejected because it can't be written: No space left on device",
            "job 7 rejected because authentication failed",
            "request denied for user alice",
            "admin request denied for user alice",
            "qalter: /opt/sge/default/common/act_qmaster: Permission denied",
            "denied: permission",
            "error: commlib error: access denied (client IP resolved to host name \"node1\")",
            "denied: commlib error",
            "denied: client (node1/qalter/1) uses old GDI version 8.1.8 while qmaster uses newer version 8.1.9",
            "denied: request for user \"alice\" does not match credentials for connection <node1,qalter,1>",
            "error: commlib error: got select error (Connection refused)",
            "error: no suitable queues yet",
        ] {
            assert!(!is_refusal(said), "{said}");
        }
    }
}
