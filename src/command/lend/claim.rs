// SPDX-License-Identifier: GPL-2.0-or-later
//! A job that uses what others have reserved meanwhile: what its user reads, and its end.

use std::time::Duration;

use jobfence::bytes::mebibytes;
use jobfence::cgroup::usage::Depth;
use jobfence::config::Config;
use jobfence::fence::living::{Recorded, WantedSteps, find};
use jobfence::host::Host;
use jobfence::job::Id;
use jobfence::schedulers::ALL;
use nix::sys::signal::Signal;

use super::borrower::Borrower;
use crate::armed::Announcement;
use crate::idle;
use crate::living::user_name;
use crate::table::printable;

/// How long it has to give it back. Meanwhile the kernel takes back what it can.
pub const GRACE: Duration = Duration::from_secs(1);

/// What its user reads.
pub fn word(job: &Borrower, limit: u64) -> Announcement {
    let node = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    Announcement {
        uid: job.uid,
        key: "MemoryPool",
        directory: job.directory.path.clone(),
        inode: job.directory.inode,
        sentence: sentence(&job.name(), &node, job.lent.limit.saturating_sub(limit)),
        signal: None,
        to_first_alone: false,
    }
}

fn sentence(name: &str, node: &str, bytes: u64) -> String {
    format!(
        "jobfence: {name} uses {} of memory on {} that it was lent, and others have reserved. If it does not free that at once, its largest \
         step is killed.",
        mebibytes(bytes),
        printable(node)
    )
}

/// Ends the step that has most in memory. Only its user's processes are killed, and so none of the scheduler's.
pub fn end(config: &Config, job: &Borrower) {
    let (name, user) = (job.name(), user_name(job.uid));
    let done = kill(config, job);
    match done {
        Ok(None) => {}
        Ok(Some(step)) => log::warn!(
            "{name} step {} of {user} is killed: it uses memory that it was lent, and others have reserved (MemoryPool)",
            printable(&step)
        ),
        Err(why) => log::error!("{name} of {user} uses memory that others have reserved, and goes on: {why}"),
    }
}

fn kill(config: &Config, job: &Borrower) -> Result<Option<String>, String> {
    let (host, _) = Host::read_what_there_is(config).map_err(|error| error.to_string())?;
    let wanted = WantedSteps { uid: Some(job.uid), job: Id::new(job.lent.job.as_str()).ok(), other_name: None };
    let recorded = Recorded::read(&config.run_dir, &wanted, &mut Vec::new());
    let (mut steps, _) = find(&host, ALL, &recorded, &wanted);
    steps.retain(|step| step.job == job.lent.job && step.node == job.lent.node);
    let largest = steps.into_iter().max_by_key(|step| step.current(Depth::Job).memory);
    let Some(step) = largest else { return Ok(None) };
    let name = step.step.clone();
    let killed = idle::signal(&[step], &host.proc, Some(job.uid), Signal::SIGKILL)?;
    Ok((killed > 0).then_some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_says_how_much_and_what_follows() {
        assert_eq!(
            sentence("job 7", "n1", 300 << 20),
            "jobfence: job 7 uses 300.0 MiB of memory on n1 that it was lent, and others have reserved. If it does not free that at once, \
             its largest step is killed."
        );
    }
}
