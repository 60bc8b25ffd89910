// SPDX-License-Identifier: GPL-2.0-or-later
//! Which user has made the namespaces of a process: ioctl_ns(2).
//!
//! A user can make namespaces only within a user namespace of the user's own, and the kernel says whose that is. What root has made is a
//! container's, or something of the site's.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use jobfence::error::{Error, Result};
use jobfence::sys::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};

/// How deep the kernel nests namespaces.
const DEEPEST: usize = 33;

/// The kinds of namespaces that decide which processes and files a process sees.
const KINDS: [&str; 2] = ["mnt", "pid"];

/// A namespace, by the device and the number of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Namespace(libc::dev_t, libc::ino_t);

impl Namespace {
    fn from_pid(proc: &Dir, pid: i32, kind: &str) -> Result<Self> {
        let name = format!("{pid}/ns/{kind}");
        fstatat(proc, name.as_str(), AtFlags::empty())
            .map(|stat| Self::from_stat(&stat))
            .map_err(|errno| Error::os("see the namespace", proc.path().join(name), errno))
    }

    fn from_stat(stat: &FileStat) -> Self {
        Self(stat.st_dev, stat.st_ino)
    }
}

/// The namespaces of this host: those of its first process. If root cannot see those, they are the namespaces of this process.
pub struct HostNamespaces {
    user: Namespace,
    others: [Namespace; KINDS.len()],
}

/// Who has made the namespaces of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamespaceMaker {
    /// The namespaces are the host's.
    Host,
    /// A user, without any rights of root's, has made them.
    User(u32),
    /// Root has made them, or more than one user has.
    Another,
}

impl HostNamespaces {
    pub fn read(proc: &Dir) -> Result<Self> {
        let of = |kind| {
            Namespace::from_pid(proc, 1, kind)
                .or_else(|_| Namespace::from_pid(proc, std::process::id().cast_signed(), kind))
        };
        let [mnt, pid] = KINDS.map(of);
        Ok(Self { user: of("user")?, others: [mnt?, pid?] })
    }

    /// Who has made the namespaces of this process.
    pub fn maker(&self, proc: &Dir, pid: i32) -> Result<NamespaceMaker> {
        let mut makers = Vec::new();
        if Namespace::from_pid(proc, pid, "user")? != self.user {
            makers.push(self.outermost(open(proc, pid, "user")?)?);
        }
        for (kind, hosts) in KINDS.iter().zip(self.others) {
            if Namespace::from_pid(proc, pid, kind)? == hosts {
                continue;
            }
            // A namespace that a user has made within a container belongs to the container. So the namespaces around it count, too. Only
            // PID namespaces have a parent that the kernel tells.
            let mut around = Some(open(proc, pid, kind)?);
            for _ in 0..DEEPEST {
                let Some(namespace) = around.filter(|around| stat_of(around) != Ok(hosts)) else { break };
                makers.push(self.outermost(asked(&namespace, libc::NS_GET_USERNS)?)?);
                around = (*kind == "pid").then(|| asked(&namespace, libc::NS_GET_PARENT)).transpose()?;
            }
        }
        Ok(match makers.split_first() {
            None => NamespaceMaker::Host,
            Some((Some(first), rest)) if rest.iter().all(|maker| maker == &Some(*first)) => {
                NamespaceMaker::User(*first)
            }
            Some(_) => NamespaceMaker::Another,
        })
    }

    /// The owner of a user namespace: of this one, or of the one around it that is a child of the host's. `None`: this one is the host's,
    /// or the owner is root.
    fn outermost(&self, mut namespace: OwnedFd) -> Result<Option<u32>> {
        for _ in 0..DEEPEST {
            if self.is_hosts(&namespace)? {
                return Ok(None);
            }
            let parent = asked(&namespace, libc::NS_GET_PARENT)?;
            if self.is_hosts(&parent)? {
                return owner(&namespace).map(|uid| Some(uid).filter(|uid| *uid != 0));
            }
            namespace = parent;
        }
        Ok(None)
    }

    fn is_hosts(&self, namespace: &OwnedFd) -> Result<bool> {
        stat_of(namespace).map(|found| found == self.user)
    }
}

fn stat_of(namespace: &OwnedFd) -> Result<Namespace> {
    let stat = fstat(namespace.as_fd()).map_err(|errno| Error::new("see a namespace").errno(errno))?;
    Ok(Namespace::from_stat(&stat))
}

fn open(proc: &Dir, pid: i32, kind: &str) -> Result<OwnedFd> {
    let name = format!("{pid}/ns/{kind}");
    // The kernel has the file behind a link, so this link is followed.
    openat(proc, name.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(|errno| Error::os("open the namespace", proc.path().join(name), errno))
}

fn asked(namespace: &OwnedFd, request: libc::Ioctl) -> Result<OwnedFd> {
    // SAFETY: both requests take no argument, and return a new descriptor or -1.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), request) };
    Errno::result(fd).map_err(|errno| Error::new("ask for the namespace around a namespace").errno(errno))?;
    // SAFETY: the kernel has just made this descriptor, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn owner(namespace: &OwnedFd) -> Result<u32> {
    let mut uid: libc::uid_t = 0;
    // SAFETY: this request writes one uid, and the pointer is to one.
    let done = unsafe { libc::ioctl(namespace.as_raw_fd(), libc::NS_GET_OWNER_UID, &raw mut uid) };
    Errno::result(done).map_err(|errno| Error::new("ask for the owner of a user namespace").errno(errno))?;
    Ok(uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    const USER: u32 = 4_242;

    /// Starts a process of the user's that says when it is where it is to be.
    fn started(words: &[&str]) -> Child {
        let uid = format!("--reuid={USER}");
        let mut child = Command::new("setpriv")
            .args([uid.as_str(), "--regid=4242", "--clear-groups", "--"])
            .args(words)
            .args(["sh", "-c", "echo here; exec sleep 600"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        heard(&mut child);
        child
    }

    /// Whether the process has said that it is there. Otherwise it has ended.
    fn heard(child: &mut Child) -> bool {
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        line == "here\n"
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_kernel_says_who_has_made_a_namespace() {
        if !nix::unistd::geteuid().is_root() {
            return crate::skip::skip("only root sees the namespaces of others");
        }
        let proc = Dir::open("/proc").unwrap();
        let host = HostNamespaces::read(&proc).unwrap();
        let of = |child: &Child| host.maker(&proc, i32::try_from(child.id()).unwrap());
        let plain = started(&[]);
        assert_eq!(of(&plain), Ok(NamespaceMaker::Host));
        end(plain);
        let nested = started(&["unshare", "--user", "--map-root-user", "--mount"]);
        let made = of(&nested);
        end(nested);
        if made == Ok(NamespaceMaker::Host) {
            return crate::skip::skip("no user can make a user namespace here");
        }
        assert_eq!(made, Ok(NamespaceMaker::User(USER)));
        let by_root =
            Command::new("unshare").args(["--mount", "--propagation", "slave", "sleep", "600"]).spawn().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(300);
        while of(&by_root) == Ok(NamespaceMaker::Host) && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let made = of(&by_root);
        end(by_root);
        assert_eq!(made, Ok(NamespaceMaker::Another));
    }

    #[test]
    fn what_a_user_makes_in_a_container_is_the_containers() {
        if !nix::unistd::geteuid().is_root() {
            return crate::skip::skip("only root sees the namespaces of others");
        }
        let proc = Dir::open("/proc").unwrap();
        let host = HostNamespaces::read(&proc).unwrap();
        let user = "exec setpriv --reuid=4242 --regid=4242 --clear-groups -- \
                    unshare --user --map-root-user --mount --pid --fork --kill-child sh -c 'echo here; exec sleep 600'";
        let mut child = Command::new("unshare")
            .args(["--mount", "--propagation", "slave", "--pid", "--fork", "--kill-child", "sh", "-c", user])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        if !heard(&mut child) {
            end(child);
            return crate::skip::skip("no user can make a user namespace here");
        }
        // The innermost process is the child of a child of a child of the one that was started here.
        let children = |pid: i32| {
            let all = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            all.split_whitespace().filter_map(|pid| pid.parse().ok()).next()
        };
        let mut pid = i32::try_from(child.id()).unwrap();
        let first = children(pid).unwrap();
        while let Some(below) = children(pid) {
            pid = below;
        }
        let made = host.maker(&proc, pid);
        // All processes in a PID namespace end with its first process. A process that has changed its user does not end with its parent any
        // more.
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(first), nix::sys::signal::Signal::SIGKILL).unwrap();
        child.wait().unwrap();
        assert_eq!(made, Ok(NamespaceMaker::Another));
    }
}
