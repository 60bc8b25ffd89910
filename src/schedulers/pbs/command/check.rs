// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence check` says about the MoM that runs on this host.

use jobfence::config::Loaded;
use jobfence::schedulers::pbs;

use super::mom::{self, ForMom, MomSays};
use crate::check::daemon::{DaemonKind, SchedulerDaemon};
use crate::check::verdict::Verdict;

/// The daemon of a node.
pub const MOM: DaemonKind = DaemonKind { program: "pbs_mom", variables: &["PBS_CONF_FILE"] };

/// Checks this MoM. It works in `mom_priv` of the directory that it was started with.
pub fn look(mom: &SchedulerDaemon, loaded: &Loaded, verdict: &mut Verdict) {
    let say = |what: &str| println!("openpbs        {what}");
    let Some(home) = mom.cwd.parent().filter(|_| mom.cwd.ends_with("mom_priv")) else { return };
    let conf = ForMom {
        file: loaded.file.as_deref(),
        sections: loaded.sections().map(|(header, _)| header).collect(),
        has_gpus: loaded.config.gpu_device.is_some(),
    };
    for said in mom::lines(&mom.cwd, &conf) {
        match said {
            MomSays::Fact(what) | MomSays::Hint(what) => say(&what),
            MomSays::Fault(what) => {
                say(&what);
                verdict.no(format!("NO job would be fenced here by OpenPBS: {what}"));
            }
        }
    }
    let configured = pbs::configured_home().and_then(|home| std::fs::canonicalize(home).ok());
    if configured.as_deref() != Some(home) {
        say(&format!(
            "MoM's directory is {}, which PBS's configuration does not name: jobfence.service removes no fence of its jobs, \
             and the hook alone does",
            home.display()
        ));
    }
}
