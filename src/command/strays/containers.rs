// SPDX-License-Identifier: GPL-2.0-or-later
//! Containers in no fence, which a daemon has started for whoever asked its socket.
//!
//! They are only reported. Nothing tells whose a container is: its root is root, and the uids in it are those of its image.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use jobfence::host::Host;
use jobfence::report::account::utc;
use jobfence::sys::process::{self, Owner};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};

use super::status::ProcessStatus;
use crate::table::printable;

/// The names of scopes that have a container's id behind them: of Docker, podman, and containerd and CRI-O under Kubernetes.
const SCOPES: [&str; 4] = ["docker-", "libpod-", "cri-containerd-", "crio-"];

/// As long as `docker ps` shows an id.
const SHOWN: usize = 12;

/// A container that is in no fence.
#[derive(Debug, Clone)]
pub struct StrayContainer {
    /// Its whole id.
    pub id: String,
    /// Its oldest process.
    pub first: Owner,
    /// The process's uid, as the host sees it.
    pub uid: u32,
    /// The name that the process gives itself.
    pub name: String,
    pub cgroup: String,
}

impl StrayContainer {
    /// The container of these processes. `None`: they have ended.
    pub fn from_pids(host: &Host, id: &str, mut pids: Vec<i32>, cgroup: String) -> Option<Self> {
        process::in_turn(&mut pids, &host.proc);
        pids.into_iter().find_map(|pid| {
            let first = Owner::from_pid(&host.proc, pid).ok().flatten()?;
            let status = ProcessStatus::read(&host.proc, pid).ok().flatten()?;
            let (uid, name) = (status.uid(), status.name);
            Some(Self { id: id.to_owned(), first, uid, name, cgroup: cgroup.clone() })
        })
    }

    /// `container 0123456789ab, since 2026-12-01T02:03:04Z`.
    pub fn named(&self) -> String {
        let since = started(self.first).map(|time| format!(", since {}", utc(time))).unwrap_or_default();
        format!("container {}{since}", self.id.get(..SHOWN).unwrap_or(&self.id))
    }

    /// What a line of the log says of it.
    pub fn in_words(&self) -> String {
        let Self { first, uid, name, cgroup, .. } = self;
        format!("{}: {} {} of uid {uid} in {}", self.named(), first.pid, printable(name), printable(cgroup))
    }
}

/// When the process has started.
fn started(process: Owner) -> Option<SystemTime> {
    let ticks = u64::try_from(sysconf(SysconfVar::CLK_TCK).ok()??).ok()?;
    let up = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?);
    time_of(process.start, ticks, up, SystemTime::now())
}

/// The time of this tick, of so many in a second, on a host that has been up for `up`.
fn time_of(tick: u64, ticks: u64, up: Duration, now: SystemTime) -> Option<SystemTime> {
    let start = Duration::from_millis(tick.checked_mul(1000)?.checked_div(ticks)?);
    now.checked_sub(up.checked_sub(start)?)
}

/// The processes of each container that were seen.
pub type SeenContainers = BTreeMap<String, Vec<i32>>;

/// The id of the container whose cgroup this is. A user can choose names below user.slice, where a container is its user's anyway.
pub fn container_in(path: &str) -> Option<&str> {
    let is_id = |name: &&str| name.len() == 64 && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let of = |name| {
        let scope = SCOPES.iter().find_map(|begin| str::strip_prefix(name, begin)?.strip_suffix(".scope"));
        Some(scope.unwrap_or(name)).filter(is_id)
    };
    if path.split('/').any(|name| name == "user.slice") { None } else { path.split('/').find_map(of) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_known_by_the_name_of_its_cgroup() {
        let id = "0123456789abcdef".repeat(4);
        for path in [
            format!("/docker/{id}"),
            format!("/docker/{id}/init.scope"),
            format!("/system.slice/docker-{id}.scope"),
            format!("/machine.slice/libpod-{id}.scope/container"),
            format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope"),
        ] {
            assert_eq!(container_in(&path), Some(id.as_str()), "{path}");
        }
        for other in [
            "/".to_owned(),
            "/docker/0123".to_owned(),
            format!("/docker/{}", id.to_uppercase()),
            format!("/machine.slice/libpod-conmon-{id}.scope"),
            format!("/user.slice/user-7.slice/user@7.service/user.slice/libpod-{id}.scope"),
        ] {
            assert_eq!(container_in(&other), None, "{other}");
        }
    }

    #[test]
    fn a_process_has_started_so_long_after_the_host() {
        let (now, second) = (SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000), Duration::from_secs(1));
        let at = |tick| time_of(tick, 100, 50 * second, now);
        assert_eq!((at(0), at(4_950)), (Some(now - 50 * second), Some(now - second / 2)));
        assert_eq!((at(5_001), at(u64::MAX), time_of(1, 0, second, now)), (None, None, None));
        let this = Owner::this(&jobfence::sys::dir::Dir::open("/proc").unwrap()).unwrap();
        assert!(started(this).is_some_and(|time| time <= SystemTime::now()));
    }
}
