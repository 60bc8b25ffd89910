// SPDX-License-Identifier: GPL-2.0-or-later
//! The end of a task, and of the step: tells the user of limits, logs the usage, and removes everything.

use std::time::{Duration, Instant};

use crate::figures::Usage;
use crate::janitor;
use crate::launch::{self, AskedProcesses};
use crate::log;
use crate::private::ipc;
use crate::record::job::JobRecords;
use crate::report;
use crate::report::account::{End, Ending, Exit, Task};
use crate::schedulers::ALL;
use crate::schedulers::slurm;
use crate::schedulers::slurm::spank::api::Spank;
use crate::schedulers::slurm::spank::bindings::spank_item;
use crate::schedulers::slurm::spank::card::BatchEnd;
use crate::schedulers::slurm::spank::log::{tell_user, tell_user_lines};
use crate::schedulers::slurm::spank::rights::Rights;
use crate::sys::call_bytes::CallBytes;

use super::{Fenced, StepState, Unfenced, step};

/// If a task succeeds within this time of another one, and others still run, usage is not read again.
const TOGETHER: Duration = Duration::from_millis(100);

/// Called in the step daemon while the user's stderr is open: reports the limits at which the step's processes were stopped.
pub fn task_ended(spank: &Spank) {
    let mut step = step();
    let fenced = match step.as_deref_mut() {
        Some(StepState::Fenced(fenced)) => fenced,
        Some(StepState::Unfenced(unfenced)) => {
            let Unfenced { unfenced_processes, host, .. } = &mut **unfenced;
            return unfenced_processes.task_ended(host);
        }
        _ => return,
    };
    fenced.unfenced_processes.task_ended(&fenced.host);
    let exit = spank.int(spank_item::S_TASK_EXIT_STATUS).ok().map(Exit::from_wait);
    let tasks = spank.u32(spank_item::S_JOB_LOCAL_TASK_COUNT);
    note_task(spank, fenced, exit);
    let others_live = tasks.as_ref().is_ok_and(|tasks| fenced.exited.saturating_add(1) < *tasks);
    let has_just_looked = fenced.looked.is_some_and(|looked| looked.elapsed() < TOGETHER);
    if !(others_live && has_just_looked && exit.is_some_and(Exit::is_success)) {
        fenced.looked = Some(Instant::now());
        fenced.fence.take_usage();
        tell_what_happened(fenced, exit);
    }
    if let Some(private) = fenced.private.as_mut().filter(|_| !others_live) {
        let full = private.full();
        full.iter().for_each(|sentence| tell_user(sentence));
        fenced.sentences.extend(full);
    }
    // Its script is a batch step's only task.
    if let Some(card) = fenced.card.as_ref().filter(|_| fenced.exited == 0) {
        let Fenced { host, fence, plan, config, started, exit, reported, facts, .. } = &**fenced;
        let name = facts.job_name.said().map(String::as_str);
        let end = BatchEnd { name, started: *started, exit: *exit, reported: *reported };
        tell_user_lines(&card.lines(spank, host, fence, (plan, config), &end));
    }
    fenced.exited = fenced.exited.saturating_add(1);
    if let Some((hand_over, grant)) = &fenced.hand_over
        && tasks.as_ref().is_ok_and(|tasks| fenced.exited == *tasks)
    {
        hand_over.give(&fenced.fence, &fenced.host.proc, grant);
    }
    // While other tasks run, they may need what another plugin started for the step.
    if !tasks.as_ref().is_ok_and(|tasks| fenced.exited < *tasks) {
        let Fenced { unfenced_processes, host, config, fence, .. } = &mut **fenced;
        unfenced_processes.end_after_tasks(host, config, fence.key());
    }
    if tasks.is_ok_and(|tasks| fenced.exited == tasks) {
        let deadline = Instant::now() + janitor::PATIENCE_AT_LAUNCH;
        if let Err(error) = fenced.fence.end_leaderless(&fenced.host, deadline) {
            log::debug!("{}: {error}", fenced.fence.key());
        }
    }
}

/// Records what is known about a task only at its end.
fn note_task(spank: &Spank, fenced: &mut Fenced, exit: Option<Exit>) {
    if fenced.exit.is_none_or(Exit::is_success) {
        fenced.exit = exit.or(fenced.exit);
    }
    if fenced.config.usage_log.is_some()
        && fenced.fence.has_own_tasks()
        && let Ok(number) = spank.u32(spank_item::S_TASK_GLOBAL_ID)
        && let Some(usage) = fenced.fence.task_usage(number)
    {
        fenced.tasks.push(Task { number, exit, usage });
    }
}

fn tell_what_happened(fenced: &mut Fenced, exit: Option<Exit>) {
    let Fenced { fence, config, requests, kernel_log, reported, .. } = fenced;
    let asked = AskedProcesses::below_the_sites(requests, config).map(AskedProcesses::by_user);
    let sentences;
    (sentences, *reported) = launch::tell(fence, kernel_log.as_ref(), asked, *reported, (exit, Some("--mem")));
    sentences.iter().for_each(|sentence| tell_user(sentence));
    fenced.sentences.extend(sentences);
}

/// Called in the step daemon when every task has ended: reports the usage, and removes everything.
pub fn end() {
    let Some(mut step) = step() else { return };
    let mut fenced = match std::mem::replace(&mut *step, StepState::Ended) {
        StepState::Fenced(fenced) => fenced,
        StepState::Unfenced(mut unfenced) => {
            let deadline = Instant::now() + unfenced.config.cleanup_timeout;
            let Unfenced { unfenced_processes, host, config, key } = &mut *unfenced;
            return unfenced_processes.end(host, config, key, deadline);
        }
        StepState::New | StepState::Read(_) | StepState::Off | StepState::Refused { .. } | StepState::Ended => return,
    };
    let (rchar, wchar) = CallBytes::since(fenced.call_bytes.take().as_ref());
    let usage = Usage { rchar, wchar, ..fenced.fence.usage() };
    log::info!("{}", report::ended(fenced.fence.key(), &usage));
    let ending = Ending {
        holder: slurm::HOLDER,
        run: 0,
        facts: &fenced.facts,
        granted: fenced.granted,
        limits: fenced.limits.unwrap_or_else(|| launch::limited_to(&fenced.fence, &fenced.config)),
        started: Some(fenced.started),
        exit: fenced.exit,
        tasks: &fenced.tasks,
        sentences: &fenced.sentences,
        end: End::Closed,
    };
    let line = launch::account(&fenced.fence, &fenced.config, &usage, &ending);
    let deadline = Instant::now() + fenced.config.cleanup_timeout;
    let mut rights = Rights::until(deadline);
    match launch::end::close(&mut fenced.fence, deadline, |error| rights.take_back(error)) {
        None => launch::write_down(&fenced.config, line.as_deref()),
        Some(remains) => log::error!("{remains}"),
    }
    ipc::discard_memory();
    if fenced.private.is_some() {
        launch::end::remove_private(&fenced.host, &fenced.config, &fenced.fence, deadline);
    }
    let Fenced { unfenced_processes, host, config, fence, .. } = &mut *fenced;
    unfenced_processes.end(host, config, fence.key(), deadline);
    if let Some(seen) = &fenced.note {
        let forgotten = JobRecords::existing(&fenced.config.run_dir).and_then(|records| {
            records.map_or(Ok(()), |records| records.forget_this(&fenced.fence.key().on_node(), seen))
        });
        if let Err(error) = forgotten {
            log::error!("{}: cannot remove the job's record yet: {error}", fenced.fence.key());
        }
    }
    // A launch cannot wait for long, and the node's next one may be hours away. Failures were reported at the launch.
    if fenced.leftovers
        && Instant::now() + janitor::PATIENCE_AT_LAUNCH + janitor::PATIENCE_WITH_MANY < deadline
        && let Some(place) = fenced.unfenced_processes.place()
        && let who =
            janitor::JanitorCaller::Launch(janitor::Launch { daemon: place, key: Some(fenced.fence.key()), all: true })
        && let Ok(reaped) =
            janitor::reap(&fenced.host, &fenced.config, ALL, who, Instant::now() + janitor::PATIENCE_AT_LAUNCH)
    {
        janitor::Reaped { failed: Vec::new(), ..reaped }.log();
    }
}
