// SPDX-License-Identifier: GPL-2.0-or-later
//! What slurm.conf says about jobs' own directories, for `jobfence check`.

use jobfence::config::Loaded;
use jobfence::private::dirs;
use jobfence::schedulers::slurm::conf::Lines;

use crate::check::rows::Rows;

/// Says what of it meets `PrivateTmp`.
pub fn say(rows: &mut Rows, loaded: &Loaded, slurm_conf: &Lines) {
    if !loaded.one_by_one().any(|candidate| dirs::has_own(&candidate.config)) {
        return;
    }
    if let Some(plugin) = slurm_conf.last("JobContainerType").filter(|plugin| plugin.value.contains('/')) {
        rows.remark(
            "private",
            format!(
                "slurm.conf has JobContainerType={}: if it gives jobs a directory that PrivateTmp names, too, each job is refused. \
                 Let one of the two do it",
                plugin.value
            ),
        );
    }
    let flags = slurm_conf.last("PrologFlags").map(|flags| flags.value.to_lowercase()).unwrap_or_default();
    if !["contain", "x11", "runinjob"].iter().any(|flag| flags.contains(flag)) {
        rows.remark(
            "private",
            "slurm.conf has no PrologFlags=Contain: on a node without the batch script, a job's own directories go with each of its \
             steps, and the next step finds them empty",
        );
    }
}
