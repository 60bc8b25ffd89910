// SPDX-License-Identifier: GPL-2.0-or-later
//! Enables controllers for the children of a cgroup2 directory, and says why a directory lacks one.

use nix::errno::Errno;

use super::layout::Hierarchy;
use crate::error::{Error, Result};
use crate::sorted;
use crate::sys::dir::Dir;
use crate::sys::systemd::is_systemd;

/// Lets the children of a cgroup2 directory have these controllers. Nothing to do on v1.
///
/// Missing controllers are enabled one by one, memory first. While a process is in the directory itself, the kernel refuses memory, but
/// a threaded controller (cpu, pids) would turn the directory into a `domain threaded` one, in which nothing can be fenced any more.
/// Then the result is read back.
///
/// A directory that was just made (`new`) has no process in it and no controller on, so all are enabled at once.
pub fn enable(dir: &Dir, hierarchy: &Hierarchy, wanted: &[&'static str], new: bool) -> Result<()> {
    const FILE: &str = "cgroup.subtree_control";
    let mut wanted: Vec<&str> = wanted.iter().copied().filter(|c| hierarchy.hands_down(c)).collect();
    sorted::sort_by_key(&mut wanted, |controller| *controller != "memory");
    let is_on = |text: &str, controller: &str| text.split_whitespace().any(|on| on == controller);
    if wanted.is_empty() {
        return Ok(());
    }
    if new {
        let all: Vec<String> = wanted.iter().map(|controller| format!("+{controller}")).collect();
        match dir.write_and_read(FILE, &all.join(" ")) {
            Ok(on) if wanted.iter().all(|controller| is_on(&on, controller)) => return Ok(()),
            // One by one, to learn which one fails.
            _ => {}
        }
    }
    let on = dir.read_value(FILE)?;
    wanted.retain(|controller| !is_on(&on, controller));
    if wanted.is_empty() {
        return Ok(());
    }
    if dir.read_if_there("cgroup.type")?.is_some_and(|kind| kind.trim() != "domain") {
        return Err(Error::new("the cgroup is threaded, so no job can be fenced below it:")
            .at(dir.path())
            .hint("a process sat directly in it when a controller was enabled; remove the cgroup (restart its unit)"));
    }
    if !dir.read("cgroup.procs")?.is_empty() && dir.path() != hierarchy.mount {
        return Err(Error::new(
            "processes sit directly in the cgroup, so it cannot give controllers to those below it:",
        )
        .at(dir.path())
        .hint("only its sub-cgroups may have processes; if jobfence.service is just starting, try again"));
    }
    for controller in &wanted {
        dir.write(FILE, &format!("+{controller}")).map_err(|error| match error.kernel_errno() {
            Some(Errno::EBUSY) => {
                error.hint("a process sits directly in this cgroup; only its sub-cgroups may have some")
            }
            // The directory may also have just gone: then the caller makes it again.
            Some(Errno::ENOENT) => not_given(dir, hierarchy, controller, is_systemd()).unwrap_or(error),
            Some(Errno::EINVAL) if *controller == "cpu" => error.hint(REAL_TIME),
            _ => error,
        })?;
    }
    let on = dir.read_value(FILE)?;
    match wanted.iter().find(|controller| !is_on(&on, controller)) {
        None => Ok(()),
        Some(controller) => Err(Error::new(format!("the {controller} controller was enabled, but is not on in"))
            .at(dir.path().join(FILE))
            .value(on.trim())),
    }
}

/// Why a cgroup2 directory does not have a controller that the root has: which directory above it does not hand it down, and
/// what to write where. `None` if the directory has it, or is gone.
pub fn not_given(dir: &Dir, hierarchy: &Hierarchy, controller: &str, systemd: bool) -> Option<Error> {
    let has = |text: &str| text.split_whitespace().any(|on| on == controller);
    let given = dir.read_value("cgroup.controllers").ok().filter(|given| !has(given))?;
    let below = dir.path().strip_prefix(&hierarchy.mount).ok()?;
    let mut above = hierarchy.mount.clone();
    let mut lacking = Vec::new();
    for name in below {
        let file = above.join("cgroup.subtree_control");
        if !std::fs::read_to_string(&file).is_ok_and(|on| has(&on)) {
            let unit = if above == hierarchy.mount {
                "-.slice".into()
            } else {
                above.file_name().unwrap_or_default().to_string_lossy()
            };
            lacking.push((file, unit.into_owned()));
        }
        above.push(name);
    }
    let (stops_at, slice) = lacking.first()?;
    let stops_at = stops_at.display();
    let is_unit = |name: &&str| [".scope", ".service", ".slice"].iter().any(|kind| name.ends_with(kind));
    let unit = below.iter().rev().filter_map(|name| name.to_str()).find(is_unit).filter(|_| systemd);
    // slurmd makes this scope, and only if there is none.
    let again = match unit {
        Some(unit) if unit.ends_with("slurmstepd.scope") => {
            format!("when no job runs stop slurmd and {unit}, and start slurmd again")
        }
        _ => "stop jobfence.service when no job runs, and start it again".to_owned(),
    };
    let error = Error::new(format!("the cgroup does not have the {controller} controller:")).at(dir.path());
    Some(error.value(given.trim()).hint(match unit {
        Some(_) if UNKNOWN_TO_SYSTEMD.contains(&controller) => {
            let files: Vec<String> = lacking.iter().map(|(file, _)| file.display().to_string()).collect();
            format!(
                "systemd does not know it, and leaves it as it is: after each boot, before slurmd starts, for file in {}; do echo \
                 +{controller} >$file; done",
                files.join(" ")
            )
        }
        Some(unit) => format!(
            "{stops_at} lacks it: {unit} needs Delegate=yes (or Delegate= with {controller} in its list), and {slice} may not \
             have DisableControllers={controller} (systemctl show -p Delegate -p DelegateControllers -p DisableControllers \
             {unit} {slice}); then {again}{}",
            if controller == "cpu" { format!("; {REAL_TIME}") } else { String::new() }
        ),
        None => format!("{stops_at} lacks it: echo +{controller} >{stops_at}"),
    }))
}

/// Documentation/admin-guide/cgroup-v2.rst, CPU; `cpu_cgroup_can_attach` answers EINVAL.
const REAL_TIME: &str = "a kernel with CONFIG_RT_GROUP_SCHED refuses cpu while a real-time process is outside of the root cgroup \
                         (ps -eo cls,pid,cgroup,comm: FF or RR): end such processes first, or give them another policy";

/// Controllers of cgroup2 that systemd neither hands down nor takes away (`CGroupController`, src/basic/cgroup-util.h).
const UNKNOWN_TO_SYSTEMD: [&str; 3] = ["hugetlb", "rdma", "misc"];

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::layout::Version;
    use super::*;

    fn hierarchy(mount: &Path, version: Version) -> Hierarchy {
        let controllers = ["cpu", "memory"].map(str::to_owned).into();
        Hierarchy { version, mount: mount.into(), root: "/".into(), controllers, name: None }
    }

    #[test]
    fn who_does_not_hand_a_controller_down_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let scope = temp.path().join("jobfence.slice/jobfence.scope");
        fs::create_dir_all(&scope).unwrap();
        fs::write(temp.path().join("cgroup.subtree_control"), "cpu memory\n").unwrap();
        fs::write(temp.path().join("jobfence.slice/cgroup.subtree_control"), "cpu\n").unwrap();
        fs::write(scope.join("cgroup.controllers"), "cpu\n").unwrap();
        let hierarchy = hierarchy(temp.path(), Version::V2);
        let dir = Dir::open(&scope).unwrap();
        let mount = temp.path().display();

        let plain = not_given(&dir, &hierarchy, "memory", false).unwrap().to_string();
        assert!(plain.contains("does not have the memory controller") && plain.contains("(value \"cpu\")"), "{plain}");
        let line = format!("echo +memory >{mount}/jobfence.slice/cgroup.subtree_control");
        assert!(plain.contains(&line), "{plain}");
        let systemd = not_given(&dir, &hierarchy, "memory", true).unwrap().to_string();
        assert!(systemd.contains("jobfence.scope needs Delegate=yes"), "{systemd}");
        assert!(systemd.contains("DisableControllers=memory") && !systemd.contains("echo"), "{systemd}");
        let unknown = not_given(&dir, &hierarchy, "hugetlb", true).unwrap().to_string();
        let files = format!(
            "in {mount}/cgroup.subtree_control {mount}/jobfence.slice/cgroup.subtree_control; do echo +hugetlb"
        );
        assert!(unknown.contains(&files), "{unknown}");

        // The outermost directory that lacks it is named.
        fs::write(temp.path().join("cgroup.subtree_control"), "cpu\n").unwrap();
        let root = not_given(&dir, &hierarchy, "memory", false).unwrap().to_string();
        assert!(root.contains(&format!("echo +memory >{mount}/cgroup.subtree_control")), "{root}");
        let root = not_given(&dir, &hierarchy, "memory", true).unwrap().to_string();
        assert!(root.contains(" -.slice may not have") && !root.contains("real-time"), "{root}");
        fs::write(scope.join("cgroup.controllers"), "memory\n").unwrap();
        fs::write(temp.path().join("jobfence.slice/cgroup.subtree_control"), "\n").unwrap();
        let cpu = not_given(&dir, &hierarchy, "cpu", true).unwrap().to_string();
        assert!(cpu.contains("while a real-time process is outside"), "{cpu}");
        fs::write(scope.join("cgroup.controllers"), "cpu\n").unwrap();

        assert!(not_given(&dir, &hierarchy, "cpu", false).is_none());
        fs::remove_dir_all(&scope).unwrap();
        assert!(not_given(&dir, &hierarchy, "memory", false).is_none(), "it is gone");
    }

    /// The kernel would not refuse a threaded controller there: it would turn the directory into one in which nothing can be
    /// fenced any more.
    #[test]
    fn nothing_is_enabled_beside_processes_or_in_a_threaded_cgroup() {
        let temp = tempfile::tempdir().unwrap();
        let scope = temp.path().join("jobfence");
        fs::create_dir(&scope).unwrap();
        let (hierarchy, dir) = (hierarchy(temp.path(), Version::V2), Dir::open(&scope).unwrap());
        let control = scope.join("cgroup.subtree_control");
        for (kind, procs, message) in [
            ("domain\n", "12\n", "processes sit directly in the cgroup"),
            ("domain threaded\n", "", "the cgroup is threaded"),
        ] {
            for (file, text) in [("cgroup.controllers", "cpu memory\n"), ("cgroup.type", kind), ("cgroup.procs", procs)]
            {
                fs::write(scope.join(file), text).unwrap();
            }
            fs::write(&control, "").unwrap();
            let error = enable(&dir, &hierarchy, &["cpu", "memory"], false).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
            assert_eq!(fs::read_to_string(&control).unwrap(), "", "{kind} something was written");
        }
    }
}
