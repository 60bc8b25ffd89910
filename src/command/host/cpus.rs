// SPDX-License-Identifier: GPL-2.0-or-later
//! The CPUs of a node that jobs can run on.

use jobfence::cgroup::cpuset;
use jobfence::cpu_list::CpuList;
use jobfence::error::{Error, Result};
use jobfence::sys::dir::Dir;

use super::way::WayToOurs;

/// Hardware threads.
pub struct UsableCpus {
    online: CpuList,
    usable: CpuList,
}

impl UsableCpus {
    /// The online CPUs that process 1 hands down to what it starts and that the cgroups on the way to ours have.
    pub fn read(proc: &Dir, cpus: &Dir, way: Option<&WayToOurs>) -> Result<Self> {
        let text = cpus.read("online")?;
        let online = CpuList::parse(&text)
            .ok_or_else(|| Error::new("not a list of CPUs:").at(cpus.path().join("online")).value(text.trim()))?;
        // The files of process 1 may be hidden from a user.
        let status = proc.read("1/status").unwrap_or_default();
        let of_init = status.lines().find_map(|line| CpuList::parse(line.strip_prefix("Cpus_allowed_list:")?));
        // A directory without the controller has the CPUs of its parent.
        let of_ours =
            way.and_then(|way| way.dirs.iter().rev().find_map(|dir| cpuset::effective(dir, way.version).ok()));
        let usable = [of_init, of_ours].iter().flatten().fold(online.clone(), |usable, more| usable.in_both(more));
        Ok(Self::new(online, usable))
    }

    /// The usable ones of the online CPUs. If there were none, that would be a mistake of ours: then all are usable.
    pub fn new(online: CpuList, usable: CpuList) -> Self {
        Self { usable: if usable.is_empty() { online.clone() } else { usable }, online }
    }

    pub fn count(&self) -> usize {
        self.usable.len()
    }

    /// Whether jobs may use every online CPU.
    pub fn are_all(&self) -> bool {
        self.usable == self.online
    }

    pub fn list(&self) -> String {
        self.usable.to_string()
    }

    /// Where the number comes from, in words.
    pub fn why(&self) -> String {
        if self.are_all() {
            return format!("the hardware threads {} are online", self.online);
        }
        format!("of the hardware threads {} that are online, jobs may use {}", self.online, self.usable)
    }
}

#[cfg(test)]
mod tests {
    use jobfence::cgroup::layout::Version;

    use super::super::way::samples::{files, way};
    use super::*;

    fn read(online: &str, status: Option<&str>, way: Option<&WayToOurs>) -> Result<UsableCpus> {
        let temp = tempfile::tempdir().unwrap();
        let proc = match status {
            Some(status) => files(temp.path(), &[("1/status", status), ("online", online)]),
            None => files(temp.path(), &[("online", online)]),
        };
        UsableCpus::read(&proc, &proc, way)
    }

    #[test]
    fn what_is_online_and_not_kept_from_jobs() {
        let all = read("0-63\n", Some("Name:\tinit\nCpus_allowed_list:\t0-127\n"), None).unwrap();
        assert_eq!((all.count(), all.why().as_str()), (64, "the hardware threads 0-63 are online"));
        let hidden = read("0-63\n", None, None).unwrap();
        assert_eq!(hidden.count(), 64);
        let fewer = read("0-63\n", Some("Cpus_allowed_list:\t2-63\n"), None).unwrap();
        assert_eq!((fewer.count(), fewer.list().as_str()), (62, "2-63"));
        assert!(fewer.why().contains("of the hardware threads 0-63 that are online, jobs may use 2-63"));
        assert!(read("0-x\n", None, None).is_err());
    }

    #[test]
    fn the_cgroups_on_the_way_have_a_say() {
        let temp = tempfile::tempdir().unwrap();
        files(
            temp.path(),
            &[
                ("cpuset.cpus.effective", "0-7\n"),
                ("a.slice/cpuset.cpus.effective", "4-7\n"),
                ("a.slice/b.scope/x", ""),
            ],
        );
        let ours = way(Version::V2, temp.path(), &["a.slice", "b.scope"], true);
        assert_eq!(read("0-7\n", None, Some(&ours)).unwrap().list(), "4-7");
        assert_eq!(read("0-5\n", Some("Cpus_allowed_list:\t0-4\n"), Some(&ours)).unwrap().list(), "4");
        // A directory without the controller does not have the file.
        let bare = tempfile::tempdir().unwrap();
        let none = way(Version::V2, bare.path(), &["a.slice"], false);
        assert_eq!(read("0-7\n", None, Some(&none)).unwrap().count(), 8);
    }
}
