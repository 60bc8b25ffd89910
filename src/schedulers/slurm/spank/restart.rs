// SPDX-License-Identifier: GPL-2.0-or-later
//! The line of a batch job that runs again, where a key has jobs do so (`OnOutOfMemory`, `OnTimeLimit`, `OnPreempt`, `ScavengerEnd`).
//!
//! slurmd truncates the output of such a job: so nothing that was written before its start would be read.

use crate::bytes::mebibytes;
use crate::config::Config;
use crate::job::JobKey;
use crate::schedulers::slurm::spank::api::Spank;
use crate::schedulers::slurm::spank::log::tell_user;

/// Tells it the user of a batch script, in its own process. Who has restarted the job is not known here: its node may have failed, or a
/// scrontab begins its next run. So the line says no cause, and a job that was restarted more often than the keys do it reads nothing. The
/// count is in that process's environment alone, where Slurm writes over the
/// user's own if it is not 0: slurmstepd never sets what it gives as `S_SLURM_RESTART_COUNT` (22.05 to 26.05).
pub fn tell(spank: &Spank, config: &Config, key: &JobKey, memory: Option<u64>) {
    let most = match config.on_out_of_memory {
        _ if key.step.as_str() != "batch" => return,
        // An end for owners is the site's doing, and bounded by nothing.
        _ if config.scavenger && config.scavenger_end => u32::MAX,
        again => again.map_or(0, |again| again.most).max(config.on_time_limit).max(config.on_preempt),
    };
    if most == 0 {
        return;
    }
    let restarts = spank.getenv(c"SLURM_RESTART_COUNT").ok().flatten().and_then(|count| count.parse::<u16>().ok());
    let restarts = restarts.filter(|restarts| (1..=most).contains(&u32::from(*restarts)));
    if let (Some(restarts), Some(memory)) = (restarts, memory) {
        tell_user(&format!("this is restart {restarts} of the job, with {} of memory", mebibytes(memory)));
    }
}
