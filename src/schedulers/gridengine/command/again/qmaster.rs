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

/// Words with which qmaster refuses for good (`msg_qmaster.h`, `msg_gdilib.h`). Any other failure may be of a qmaster that does not answer.
const REFUSALS: [&str; 3] = ["denied", "no suitable queues", "rejected"];

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
        let user = User::from_uid(uid.into()).ok().flatten();
        // A name service can fail for a moment, and then knows nobody.
        let user = user.ok_or_else(|| AgainTrouble::Unknown("its user is not known on this host".to_owned()))?;
        let ids = (user.uid.as_raw(), user.gid.as_raw());
        match self.execd.ask_as(argv, ids, self.deadline) {
            Ok((true, said)) => Ok(said),
            Ok((false, said)) => {
                let why = format!("{}: {said}", argv.first().copied().unwrap_or_default());
                let is_refusal = REFUSALS.iter().any(|words| said.contains(words));
                Err(if is_refusal { AgainTrouble::Refused(why) } else { AgainTrouble::Unknown(why) })
            }
            Err(why) => Err(AgainTrouble::Unknown(why)),
        }
    }
}
