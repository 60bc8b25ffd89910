// SPDX-License-Identifier: GPL-2.0-or-later
//! Puts the tasks of a step into its fence, while they wait before their exec.

use crate::cgroup::membership::Membership;
use crate::config::{OnError, OnErrors};
use crate::launch::{self, Joining, NotFenced};
use crate::log;
use crate::schedulers::slurm::spank::api::Spank;
use crate::schedulers::slurm::spank::bindings::spank_item;
use crate::schedulers::slurm::spank::grant::StepKind;
use crate::schedulers::slurm::spank::log::tell_user;
use crate::schedulers::slurm::spank::waiting_tasks;
use crate::sys::process::is_ending;

use super::{Fenced, StepState, UNFINISHED, Unfenced, step};

/// Called in the step daemon, while all tasks of the step on this node wait before their exec.
pub fn attach(spank: &Spank) {
    let mut step = step();
    let pid = match spank.int(spank_item::S_TASK_PID) {
        Ok(pid) if pid > 1 => pid,
        // The extern step has no task, but Slurm makes this call all the same.
        _ if spank.u32(spank_item::S_JOB_STEPID).is_ok_and(|step| StepKind::from_step_id(step) == StepKind::Extern) => {
            if let Some(StepState::Fenced(fenced)) = step.as_deref_mut() {
                settle_extern(fenced);
            }
            return;
        }
        answer => {
            let answer = answer.map_or_else(|error| error.to_string(), |pid| format!("it says {pid}"));
            log::error!("a task runs WITHOUT a fence, since Slurm does not tell its pid ({answer})");
            // This task cannot be ended, but later ones can.
            if let Some(StepState::Fenced(fenced)) = step.as_deref_mut() {
                fenced.ended = fenced.config.on_error.general() == OnError::Fail;
            }
            return;
        }
    };
    let failure = match step.as_deref_mut() {
        Some(StepState::Off | StepState::Refused { .. }) => return,
        Some(StepState::Unfenced(unfenced)) => {
            let Unfenced { unfenced_processes, host, config, key } = &mut **unfenced;
            return unfenced_processes.add(host, config, key, pid);
        }
        Some(StepState::Fenced(fenced)) if fenced.ended => return waiting_tasks::end(Some(&fenced.host.proc), &[pid]),
        Some(StepState::Fenced(fenced)) if fenced.attached.contains(&pid) => return,
        Some(StepState::Fenced(fenced)) => match fence_task(fenced, spank, pid) {
            Ok(()) => {
                if fenced.attached.is_empty()
                    && let Some(sentence) = launch::tell::gpus_not_allowed(&fenced.fence)
                {
                    tell_user(&sentence);
                }
                if fenced.attached.is_empty() {
                    fenced.limits = Some(launch::limited_to(&fenced.fence, &fenced.config));
                }
                fenced.attached.push(pid);
                if fenced.fence.has_overlay() {
                    fenced.unfenced_processes.task_attached(&fenced.host);
                }
                return;
            }
            // Another plugin refused the task, or another process killed it: it needs no fence any more.
            Err(error) if is_ending(&fenced.host.proc, pid) => {
                log::debug!("task {pid} ended before it could be fenced: {error}");
                return;
            }
            Err(error) if error.is_bearable(fenced.config.on_error.general()) => {
                let by = OnErrors::softened_by(fenced.config.mode);
                log::error!("task {pid} runs WITHOUT a fence ({by}): {error}");
                let Fenced { unfenced_processes, host, config, fence, .. } = &mut **fenced;
                return unfenced_processes.add(host, config, fence.key(), pid);
            }
            Err(error) => {
                fenced.ended = true;
                error.for_user()
            }
        },
        Some(StepState::New | StepState::Read(_) | StepState::Ended) | None => UNFINISHED.to_owned(),
    };
    refuse_task(step.as_deref(), pid, &failure);
}

/// Called when [`attach`] panicked: no later callback could refuse the task.
pub fn attach_did_not_finish(spank: &Spank) {
    let Some(pid) = spank.int(spank_item::S_TASK_PID).ok().filter(|&pid| pid > 1) else { return };
    let mut step = step();
    if let Some(StepState::Fenced(fenced)) = step.as_deref_mut() {
        fenced.ended = true;
    }
    refuse_task(step.as_deref(), pid, UNFINISHED);
}

/// Ends a task that waits before its exec, and those that were attached before it.
fn refuse_task(step: Option<&StepState>, pid: i32, failure: &str) {
    // Before its end: see `waiting_tasks`.
    tell_user(&format!("this task was not started, since it cannot be fenced: {failure}"));
    let proc = match step {
        Some(StepState::Fenced(fenced)) => Some(&fenced.host.proc),
        _ => None,
    };
    waiting_tasks::end(proc, &[pid]);
    log::error!("task {pid} was ended, since it cannot be fenced: {failure}");
    // The others would wait for it, perhaps without end; later tasks meet `ended`.
    if let Some(StepState::Fenced(fenced)) = step
        && !fenced.attached.is_empty()
    {
        log::error!("{}: the step's other tasks {:?} were ended too", fenced.fence.key(), fenced.attached);
        waiting_tasks::end(proc, &fenced.attached);
    }
}

fn fence_task(fenced: &mut Fenced, spank: &Spank, pid: i32) -> Result<(), NotFenced> {
    let task = spank.u32(spank_item::S_TASK_GLOBAL_ID)?;
    let joining = Joining { pid, id: None, task: Some(task), is_first: fenced.attached.is_empty() };
    let Fenced { fence, host, config, requests, .. } = fenced;
    launch::attach(fence, host, config, requests, joining)
}

/// Limits what pam_slurm_adopt will put into the extern step, if Slurm made directories for it. No plugin is told of a process in them: the
/// step daemon itself, or the placeholder that it started (before 25.05), shows where they are.
fn settle_extern(fenced: &mut Fenced) {
    let daemon = fenced.daemon.as_raw();
    let threads =
        fenced.host.proc.child(&format!("{daemon}/task")).and_then(|tasks| tasks.list(true)).unwrap_or_default();
    let children = threads.iter().flat_map(|thread| {
        let children = fenced.host.proc.read(&format!("{daemon}/task/{thread}/children")).unwrap_or_default();
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()
    });
    for pid in std::iter::once(daemon).chain(children.collect::<Vec<_>>()) {
        let Ok(member) = Membership::read(&fenced.host.proc, pid) else { continue };
        fenced.fence.mark_others(&fenced.host, &member);
        let settled = fenced.fence.settle(&member).map_err(NotFenced::from);
        fenced.fence.mark_located();
        let settled = settled
            .and_then(|errors| launch::refuse::bear(fenced.fence.key(), &fenced.config, &fenced.requests, errors));
        if let Err(error) = settled {
            // There is no task to refuse: the job's other steps report this to their user.
            log::error!(
                "{}: the processes that are adopted into the step are not limited as configured: {error}",
                fenced.fence.key()
            );
        }
    }
}
