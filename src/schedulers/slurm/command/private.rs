// SPDX-License-Identifier: GPL-2.0-or-later
//! What slurm.conf and plugstack.conf say about jobs' own directories and their own proc, for `jobfence check`.

use std::path::Path;

use jobfence::config::{Config, Loaded};
use jobfence::private::{dirs, processes};
use jobfence::schedulers::slurm::conf::Lines;
use jobfence::schedulers::slurm::plugstack;

use crate::check::rows::Rows;

/// What else gives jobs a mount namespace.
struct OtherMounts {
    /// The line of slurm.conf, as KEY=VALUE, if it names a plugin.
    container: Option<String>,
    /// Whether plugstack.conf loads pyxis.
    has_pyxis: bool,
}

/// Says what of it meets `PrivateTmp` and `HideProcesses`.
pub fn say(rows: &mut Rows, loaded: &Loaded, slurm_conf: &Lines, plugstack_conf: &Path) {
    let is_anywhere =
        |is_wanted: fn(&Config) -> bool| loaded.one_by_one().any(|candidate| is_wanted(&candidate.config));
    let mounts = OtherMounts {
        container: container(slurm_conf),
        has_pyxis: plugstack::loads(plugstack_conf, |plugin| plugin.ends_with("spank_pyxis.so")),
    };
    let of_directories = is_anywhere(dirs::has_own).then(|| mounts.meets_directories());
    let of_processes = is_anywhere(processes::is_wanted).then(|| mounts.meets_processes());
    for line in of_directories.into_iter().flatten().chain(of_processes.into_iter().flatten()) {
        rows.remark("private", line);
    }
    let flags = slurm_conf.last("PrologFlags").map(|flags| flags.value.to_lowercase()).unwrap_or_default();
    if is_anywhere(dirs::has_own) && !["contain", "x11", "runinjob"].iter().any(|flag| flags.contains(flag)) {
        rows.remark(
            "private",
            "slurm.conf has no PrologFlags=Contain: on a node without the batch script, a job's own directories go with each of its \
             steps, and the next step finds them empty",
        );
    }
}

/// `NamespaceType` is the name since 25.11, and counts before the other there (`_validate_and_set_defaults` in src/common/read_config.c).
fn container(slurm_conf: &Lines) -> Option<String> {
    ["NamespaceType", "JobContainerType"].into_iter().find_map(|key| {
        let plugin = slurm_conf.last(key).filter(|plugin| plugin.value.contains('/'))?;
        Some(format!("{key}={}", plugin.value))
    })
}

impl OtherMounts {
    fn meets_directories(&self) -> Option<String> {
        let container = self.container.as_ref()?;
        Some(format!(
            "slurm.conf has {container}: if it gives jobs a directory that PrivateTmp names, too, each job is refused. Let one of the \
             two do it"
        ))
    }

    /// `job_container/tmpfs` and `namespace/tmpfs` mount no proc (22.05 to 26.05). `namespace/linux` does with `CLONE_NEWPID`
    /// (`_mount_private_proc` in namespace_linux.c, 25.11 and 26.05).
    fn meets_processes(&self) -> Vec<String> {
        let container = self.container.as_ref().filter(|container| container.contains("/linux")).map(|container| {
            format!(
                "slurm.conf has {container}: with CLONE_NEWPID in namespace.yaml it mounts a /proc of the job's own, and HideProcesses \
                 mounts another one over it, which no test has shown. Let one of the two do it"
            )
        });
        let pyxis = self.has_pyxis.then(|| {
            "plugstack.conf loads pyxis: a container that enroot starts for it has the host's /proc, and sees the processes of others \
             despite HideProcesses"
                .to_owned()
        });
        container.into_iter().chain(pyxis).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts(text: &str) -> OtherMounts {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("slurm.conf");
        std::fs::write(&file, text).unwrap();
        OtherMounts { container: container(&Lines::read(&file)), has_pyxis: false }
    }

    #[test]
    fn only_what_mounts_a_proc_meets_the_jobs_own() {
        for (text, directories, processes) in [
            ("", 0, 0),
            ("JobContainerType=job_container/none", 1, 0),
            ("JobContainerType=job_container/tmpfs", 1, 0),
            ("NamespaceType=namespace/tmpfs", 1, 0),
            ("NamespaceType=namespace/linux", 1, 1),
            ("NamespaceType=namespace/linux\nJobContainerType=job_container/tmpfs", 1, 1),
        ] {
            let mounts = mounts(text);
            let said = (mounts.meets_directories().iter().count(), mounts.meets_processes().len());
            assert_eq!(said, (directories, processes), "{text}");
        }
        let [said] = <[String; 1]>::try_from(mounts("NamespaceType=namespace/linux").meets_processes()).unwrap();
        assert!(said.starts_with("slurm.conf has NamespaceType=namespace/linux: with CLONE_NEWPID "), "{said}");
        let [said] =
            <[String; 1]>::try_from(OtherMounts { container: None, has_pyxis: true }.meets_processes()).unwrap();
        assert!(said.starts_with("plugstack.conf loads pyxis: "), "{said}");
    }
}
