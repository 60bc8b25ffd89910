// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence check` says about the MoM that runs on this host.

use jobfence::config::{Loaded, default_files};
use jobfence::schedulers::pbs;

use super::mom::{self, ForMom, MomSays};
use crate::check::daemon::{DaemonKind, SchedulerDaemon};
use crate::check::private;
use crate::check::rows::Rows;
use crate::check::verdict::Verdict;

/// The daemon of a node.
pub const MOM: DaemonKind = DaemonKind { program: "pbs_mom", variables: &["PBS_CONF_FILE"] };

/// Checks this MoM. It works in `mom_priv` of the directory that it was started with.
pub fn look(mom: &SchedulerDaemon, loaded: &Loaded, rows: &mut Rows, verdict: &mut Verdict) {
    let Some(home) = mom.cwd.parent().filter(|_| mom.cwd.ends_with("mom_priv")) else { return };
    let conf = ForMom {
        file: loaded.file.as_deref(),
        by_default: default_files().into_iter().next(),
        sections: loaded.sections().map(|(header, _)| header).collect(),
        has_gpus: loaded.config.gpu_device.is_some(),
    };
    private::refuse(
        loaded,
        "OpenPBS",
        "MoM starts the job's processes, and no program of jobfence's does",
        rows,
        verdict,
    );
    for said in mom::lines(&mom.cwd, &conf) {
        match said {
            MomSays::Fact(what) => rows.fact("openpbs", what),
            MomSays::Hint(what) => rows.remark("openpbs", what),
            MomSays::NotYet(what) => {
                rows.remark("openpbs", &what);
                verdict.not_yet(format!("NO job is fenced here by OpenPBS: {what}"));
            }
            MomSays::Fault(what) => {
                rows.fault("openpbs", &what);
                verdict.no(format!("NO job would be fenced here by OpenPBS: {what}"));
            }
        }
    }
    let configured = pbs::configured_home().and_then(|home| std::fs::canonicalize(home).ok());
    if configured.as_deref() != Some(home) {
        rows.remark(
            "openpbs",
            format!(
                "MoM's directory is {}, which PBS's configuration does not name: jobfence.service removes no fence of its \
                 jobs, and the hook alone does",
                home.display()
            ),
        );
    }
}
