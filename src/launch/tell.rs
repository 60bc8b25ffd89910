// SPDX-License-Identifier: GPL-2.0-or-later
//! What happened in the fence and should be told to its user, each event once.

use crate::cgroup::devices::Devices;
use crate::cgroup::events::KernelLog;
use crate::config::{Config, Limit};
use crate::fence::Fence;
use crate::report;
use crate::report::account::Exit;
use crate::requests::UserRequests;

/// How much the user has been told. A later call, perhaps in another process, goes on from there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reported {
    /// How many of the step's processes the kernel had killed for lack of memory.
    pub kills: u64,
    /// How many forks had failed.
    pub refusals: u64,
    /// Whether systemd-oomd had killed some.
    pub by_oomd: bool,
    /// Whether jobfence.service had ended the job.
    pub by_hold: bool,
}

/// How many processes the user requested, if the site allows more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AskedProcesses {
    /// The number.
    pub most: u64,
    /// The option.
    pub option: &'static str,
}

impl AskedProcesses {
    /// Requested by the option of a job's user.
    pub fn by_user(most: u64) -> Self {
        Self { most, option: "--pids-max" }
    }

    /// How many processes a job's user requested, if the site allows more.
    pub fn below_the_sites(requests: &UserRequests, config: &Config) -> Option<u64> {
        let sites = config.numbers.get(Limit::Processes);
        requests.processes().filter(|asked| sites.is_none_or(|site| site > *asked))
    }
}

/// Sentences for the user about what has happened since `before`, and how much has then been told.
///
/// `kernel_log` gives the names of killed processes; without it they have none. `memory_option` is the user's option for more memory, if
/// the entry point knows it. `exit` is how the task has ended, or the whole step. `None`: not known.
pub fn tell(
    fence: &Fence,
    kernel_log: Option<&KernelLog>,
    asked: Option<AskedProcesses>,
    before: Reported,
    (exit, memory_option): (Option<Exit>, Option<&str>),
) -> (Vec<String>, Reported) {
    let refusals = fence.forks_refused();
    let refused = of_refusals(fence, refusals.saturating_sub(before.refusals), asked);
    let kills = fence.oom_kills();
    let unsaid = kills.saturating_sub(before.kills);
    let killed = of_kills(fence, unsaid, kernel_log, memory_option);
    // A look costs calls, and a job that ends well has none to spare.
    let may_be_by_others = exit.is_none_or(|exit| exit.is_by(libc::SIGKILL));
    let ended = if may_be_by_others && !before.by_hold { fence.why_ended() } else { None };
    let may_be_by_oomd = may_be_by_others && ended.is_none() && unsaid == 0 && !before.by_oomd;
    let by_oomd = may_be_by_oomd && fence.is_killed_by_oomd();
    let by_hold = before.by_hold || ended.is_some();
    let others = match ended {
        Some(why) => Some(report::ended_by_hold(fence.key(), &why)),
        None => by_oomd.then(|| report::killed_by_oomd(fence.key())),
    };
    let reported = Reported {
        // Kills in a directory that is gone are not counted any more.
        kills: kills.max(before.kills),
        refusals,
        by_oomd: before.by_oomd || by_oomd,
        by_hold,
    };
    (refused.into_iter().chain(killed).chain(others).collect(), reported)
}

fn of_refusals(fence: &Fence, unsaid: u64, asked: Option<AskedProcesses>) -> Option<String> {
    if unsaid == 0 {
        return None;
    }
    let (of_job, of_task) = (fence.processes(), fence.processes_of_task());
    if of_job.is_none() && of_task.is_none() {
        return None;
    }
    let asked = asked.filter(|asked| of_job == Some(asked.most)).map(|asked| asked.option);
    Some(report::too_many_processes(fence.key(), unsaid, of_job, of_task, asked))
}

fn of_kills(fence: &Fence, unsaid: u64, kernel_log: Option<&KernelLog>, memory_option: Option<&str>) -> Option<String> {
    if unsaid == 0 {
        return None;
    }
    let levels = fence.memory_levels();
    // Processes of the step may be in directories of their own below it.
    let is_ours = |place: &str| levels.first().is_some_and(|step| step.holds(place));
    let mut logged = kernel_log.into_iter().flat_map(KernelLog::oom_kills);
    // Many processes may have been killed for the same reason: the last one is an example.
    let named = logged.rfind(|kill| is_ours(&kill.task_in));
    let sentence = report::out_of_memory(fence.key(), named.as_ref(), &levels, memory_option);
    let others = match unsaid {
        1 => String::new(),
        more => format!(" ({} more of its processes were killed before.)", more - 1),
    };
    Some(format!("{sentence}{others}"))
}

/// Why the step may use none of its job's GPUs, if so.
pub fn gpus_not_allowed(fence: &Fence) -> Option<String> {
    let why = fence.devices().and_then(Devices::why_no_gpus)?;
    Some(format!(
        "{}: the job may use none of its GPUs, since jobfence is not certain which devices they are: {why}. Ask your \
         administrator: see GPUDevice in jobfence.conf(5)",
        fence.key()
    ))
}
