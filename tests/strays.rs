// SPDX-License-Identifier: GPL-2.0-or-later
//! Strays: users' processes that are in no fence, on a host with a scheduler's daemon. The daemon is a program with the name of one.
//!
//! Other tests run beside these: only of one leased account anything is asked, by a section of the configuration.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use jobfence::cgroup::layout::Layout;
use jobfence::cgroup::mark;
use jobfence::config::Config;
use jobfence::fence::Fence;
use jobfence::host::Host;
use jobfence::job::{Cpus, Grant, Id, JobKey};
use jobfence::policy;
use jobfence::sys::dir::Dir;

mod common;

use common::OfUser as Site;
use common::{lives, says, until};

/// `None`: the test is skipped.
fn site(test: &str) -> Option<Site> {
    let mut site = Site::new("strays", test)?;
    let daemon = site.program("/bin/sleep", "slurmd");
    site.start(Command::new(daemon).arg("3000"));
    Some(site)
}

impl Site {
    /// `jobfence hold`, and what it says.
    fn hold(&mut self) -> PathBuf {
        let hold = self.jobfence("hold");
        self.hold_by(hold).1
    }

    /// What would be done with each process of the user's, and why.
    fn listed(&self) -> BTreeMap<i32, (String, String)> {
        let done = self.jobfence("strays").arg("--json").output().unwrap();
        assert!(done.status.success(), "{done:?}");
        let found: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let one = |value: &serde_json::Value| {
            let pid = i32::try_from(value["pid"].as_i64().unwrap()).unwrap();
            (pid, (text(&value["action"]), text(&value["why"])))
        };
        let all = found["processes"].as_array().unwrap().iter();
        all.filter(|value| value["uid"].as_u64() == Some(self.user.uid.as_raw().into())).map(one).collect()
    }

    fn host(&self) -> (Host, Config) {
        let config =
            Config { cgroup_base: Some(self.base.name.clone()), run_dir: self.path("run"), ..Config::default() };
        (Host::read(&config).unwrap(), config)
    }

    /// The user's job, as Slurm's extern step has it. This process is its daemon.
    fn job(&self, job: &str) -> LiveJob {
        let (host, config) = self.host();
        let uid = self.user.uid.as_raw();
        let key = JobKey { node: None, uid, job: Id::new(job).unwrap(), step: Id::new("extern").unwrap() };
        let mut fence = common::open(&host, &config, &key, None).unwrap();
        let grant = Grant::whole(Some(Cpus::whole(1)), Some(100 << 20));
        assert!(fence.limit(&policy::plan(&config, &grant).0).is_empty());
        LiveJob { path: fence.path().unwrap(), host, fence }
    }
}

struct LiveJob {
    host: Host,
    fence: Fence,
    path: String,
}

impl LiveJob {
    fn has(&self, pid: i32) -> bool {
        fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(&self.path))
    }

    fn take(&mut self, pid: i32) {
        let errors = self.fence.attach(&self.host, pid, None).unwrap();
        assert!(errors.is_empty(), "{errors:?}");
    }
}

impl Drop for LiveJob {
    fn drop(&mut self) {
        let _ = self.fence.close(common::soon());
    }
}

#[test]
fn a_stray_is_reported_once_and_lives() {
    let Some(mut site) = site("reported") else { return };
    let metrics = site.path("jobfence.prom");
    let all = format!("Strays=off StraysGrace=1 ReapInterval=1 MetricsFile={}", metrics.display());
    site.configure(&all, "Strays=report");
    let pid = site.run(&["sleep", "1000"]);
    assert_eq!(site.listed()[&pid], ("report".to_owned(), "after 1 s".to_owned()));
    let said = site.hold();
    let name = site.user.name.clone();
    let words = format!("1 process of {name} is in no fence (Strays in jobfence.conf): {pid} sleep in /");
    until("the line in the log", || says(&said, &words));
    let line = format!("jobfence_stray_processes{{user=\"{name}\"}} 1\n");
    until("the metric", || says(&metrics, &line));
    // The metrics are written again each second: by then there was another look.
    fs::remove_file(&metrics).unwrap();
    until("more metrics", || says(&metrics, &line));
    assert_eq!(fs::read_to_string(&said).unwrap().matches(&words).count(), 1);
    assert!(lives(pid));
}

#[test]
fn hostile_strays_are_killed_and_all_others_are_spared() {
    let Some(mut site) = site("killed") else { return };
    let (uid, name) = (site.user.uid.as_raw(), site.user.name.clone());
    // A cgroup that the site allows.
    let layout = Layout::read(&Dir::open("/proc").unwrap(), Path::new("/sys/fs/cgroup")).unwrap();
    let top = layout.hierarchies.iter().find(|one| one.has("freezer") || one.has("pids")).unwrap();
    let allowed = format!("jobfence-strays-allowed-{}", std::process::id());
    let service = allowed.replace("-allowed-", "-") + ".service";
    let marked = allowed.replace("allowed", "marked");
    for name in [&allowed, &service, &marked] {
        let cgroup = top.mount.join(name);
        fs::create_dir(&cgroup).unwrap();
        site.cgroups.push(cgroup);
    }
    mark::set(&Dir::open(top.mount.join(&marked)).unwrap(), "a fence of another base").unwrap();
    let below = top.in_proc(&format!("/{}", allowed.replace("allowed", "a*d")));
    site.configure(&format!("Strays=off StraysGrace=1 StraysAllow={below}"), "Strays=kill");

    let mut spared: Vec<(&str, i32, &str)> = Vec::new();
    let mut job = site.job("7");
    let fenced = site.run(&["sleep", "1001"]);
    job.take(fenced);
    let in_allowed = site.run(&["sleep", "1002"]);
    fs::write(top.mount.join(&allowed).join("cgroup.procs"), in_allowed.to_string()).unwrap();
    spared.push(("allowed", in_allowed, "StraysAllow has /"));
    // A service with the uid of a person, such as munged at some sites; and a fence of another installation.
    for (what, name, why) in
        [("a service's", &service, "it is of /"), ("marked", &marked, "it is in a fence of another CgroupBase")]
    {
        let pid = site.run(&["sleep", "1010"]);
        fs::write(top.mount.join(name).join("cgroup.procs"), pid.to_string()).unwrap();
        spared.push((what, pid, why));
    }
    // A set-user-ID program of root's; `su` waits in the same way.
    let setuid = site.program("/bin/sleep", "setuid");
    fs::set_permissions(&setuid, Permissions::from_mode(0o4755)).unwrap();
    let is_nosuid = || common_flags(site.top.path());
    if !is_nosuid() {
        let pid = site.run(&[setuid.to_str().unwrap(), "1003"]);
        until("root's rights", || {
            fs::read_to_string(format!("/proc/{pid}/status")).unwrap().contains(&format!("Uid:\t{uid}\t0"))
        });
        spared.push(("set-user-ID", pid, "it runs a set-user-ID program"));
    }
    // What a scheduler's daemon starts, although that has no fence; its parent is gone from it by a double fork.
    let shepherd = site.program("/bin/bash", "sge_shepherd");
    let note = site.path("home/of_daemon");
    let script = format!(
        "setpriv --reuid={uid} --regid={uid} --clear-groups sh -c 'echo $$ >{}; exec sleep 1004' & wait",
        note.display()
    );
    site.start(Command::new(&shepherd).args(["-c", &script]));
    spared.push(("the daemon's", pid_in(&note), "a scheduler's daemon has started it"));
    // A container's, as root has made it.
    let note = site.path("home/in_container");
    let script = format!(
        "setpriv --reuid={uid} --regid={uid} --clear-groups sh -c 'echo $$ >{}; exec sleep 1005'",
        note.display()
    );
    site.start(Command::new("unshare").args(["--mount", "--propagation", "slave", "sh", "-c", &script]));
    spared.push(("in root's namespace", pid_in(&note), "root has made its namespaces"));
    for (what, pid, why) in &spared {
        let listed = site.listed();
        let (action, said) = listed.get(pid).unwrap_or_else(|| panic!("{what}: {pid} is not in {listed:?}"));
        assert!(action == "nothing" && said.starts_with(why), "{what}: {action}, {said}");
    }
    assert!(!site.listed().contains_key(&fenced));

    let mut ended: Vec<(&str, i32)> = Vec::new();
    ended.push(("plain", site.run(&["sleep", "1010"])));
    ended.push(("deaf", site.run(&["sh", "-c", "trap '' TERM HUP; while :; do sleep 1; done"])));
    // It bears a daemon's name, as process and as program, and so does what is below it.
    let renamed = site.program("/bin/bash", "slurmstepd");
    ended.push(("renamed", site.run(&[renamed.to_str().unwrap(), "-c", "sleep 1011; :"])));
    ended.push(("nested", site.run(&["unshare", "--user", "--map-root-user", "--mount", "sleep", "1012"])));
    ended.push((
        "init of its own",
        site.run(&["unshare", "--user", "--map-root-user", "--pid", "--fork", "sleep", "1013"]),
    ));
    let traced = "import ctypes, os, signal\n\
        child = os.fork()\n\
        if not child:\n    ctypes.CDLL(None).ptrace(0, 0, 0, 0)\n    os.kill(os.getpid(), signal.SIGSTOP)\n    signal.pause()\n\
        os.waitpid(child, 0x40000000)\n\
        while True: signal.pause()\n";
    ended.push(("tracer", site.run(&["python3", "-S", "-c", traced])));
    // Each lives for a moment only, in a session of its own, and leaves another one behind.
    let chain = "import os, time\n\
        while True:\n\
        \x20   if os.fork(): os._exit(0)\n\
        \x20   os.setsid()\n\
        \x20   time.sleep(0.02)\n";
    ended.push(("chain", site.run(&["python3", "-S", "-c", chain])));
    let of_user = move || -> Vec<i32> {
        let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(|pid: &i32| {
            lives(*pid)
                && fs::read_to_string(format!("/proc/{pid}/status"))
                    .is_ok_and(|text| text.contains(&format!("Uid:\t{uid}\t{uid}\t")))
        })
        .collect()
    };
    until("the tracer's child", || {
        of_user().iter().any(|pid| {
            fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|text| !text.contains("TracerPid:\t0"))
        })
    });
    assert!(site.listed().values().filter(|(action, _)| action == "kill").count() >= ended.len());

    let said = site.hold();
    let left: Vec<i32> = [fenced].into_iter().chain(spared.iter().map(|(_, pid, _)| *pid)).collect();
    // The parents of those that are spared are root's.
    until("only those that are spared are left", || of_user().iter().all(|pid| left.contains(pid)));
    for (what, pid) in &ended {
        assert!(!lives(*pid), "{what}");
    }
    assert!(
        says(&said, &format!(" of {name} were in no fence (Strays in jobfence.conf), and got SIGTERM: ")),
        "{}",
        fs::read_to_string(&said).unwrap()
    );
    until("the words", || says(&said, &format!(" of {name} got SIGKILL: they stayed in no fence after SIGTERM")));
    // After another round, too.
    let next = site.run(&["sleep", "2000"]);
    until("the next one ends", || !lives(next));
    for (what, pid, _) in &spared {
        assert!(lives(*pid), "{what}: {}", fs::read_to_string(&said).unwrap());
    }
    assert!(lives(fenced) && job.has(fenced));
}

/// Whether set-user-ID programs do nothing there.
fn common_flags(path: &Path) -> bool {
    nix::sys::statvfs::statvfs(path).unwrap().flags().contains(nix::sys::statvfs::FsFlags::ST_NOSUID)
}

fn pid_in(note: &Path) -> i32 {
    let read = || fs::read_to_string(note).ok().filter(|text| text.ends_with('\n'));
    until("the process has noted its number", || read().is_some());
    let pid = read().unwrap().trim().parse().unwrap();
    until("its program", || fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "sleep"));
    pid
}

#[test]
fn a_stray_goes_into_its_users_newest_job() {
    let Some(mut site) = site("adopted") else { return };
    site.configure("Strays=off StraysGrace=1", "Strays=adopt");
    let pid = site.run(&["sh", "-c", "sleep 1000 & wait"]);
    until("its child", || site.listed().len() >= 2);
    assert_eq!(site.listed()[&pid].1, "its user has no job on this node that it can go into");
    let said = site.hold();
    let name = site.user.name.clone();
    until("the complaint", || says(&said, &format!("processes of {name} stay in no fence: ")));
    let job = site.job("8");
    until("it is in the job", || job.has(pid));
    until("and so is its child, and nothing is left", || site.listed().is_empty());
    until("the words", || {
        says(
            &said,
            &format!(" of {name} were in no fence (Strays in jobfence.conf), and went into a job: {pid} sh in /"),
        )
    });
    let complaints = fs::read_to_string(&said).unwrap().matches("stay in no fence").count();
    assert_eq!(complaints, 1, "{}", fs::read_to_string(&said).unwrap());
}

#[test]
fn what_may_be_a_jobs_is_only_reported() {
    let Some(mut site) = site("doubt") else { return };
    let pid = site.run(&["sleep", "1000"]);
    for (all, more, why) in [
        ("Mode=observe", "", "Mode=observe"),
        ("OnError=warn", "", "OnError=warn, so a job can run without a fence"),
        ("", "\n[Partition=x]\nOnError=warn", "OnError=warn, so a job can run without a fence ([Partition=x])"),
    ] {
        site.configure(&format!("Strays=off StraysGrace=1 {all}"), &format!("Strays=kill{more}"));
        assert_eq!(site.listed()[&pid], ("report".to_owned(), format!("and nothing more, since {why}")));
    }
    let said = site.hold();
    until("the line in the log", || says(&said, "; nothing more is done, since OnError=warn, so a job"));
    assert!(lives(pid));
    let check = site.jobfence("check").output().unwrap();
    site.configure("Strays=kill Mode=observe", "Strays=off");
    let with = site.jobfence("check").output().unwrap();
    let has = |output: &std::process::Output| {
        String::from_utf8_lossy(&output.stdout).contains("are only reported, since Mode=observe")
    };
    assert_eq!([has(&check), has(&with)], [false, true]);
}

/// Where no daemon of a scheduler is, the processes of users are the node's purpose. Beside schedulers of which no test has shown that their
/// jobs are told from strays, nothing is done either.
#[test]
fn strays_are_only_reported_where_they_may_be_something_else() {
    let Some(site) = site("login") else { return };
    site.configure("Strays=off StraysGrace=1", "Strays=kill");
    let uid = site.user.uid.as_raw();
    let said = |daemon: &str| {
        let script = format!(
            "{daemon} setpriv --reuid={uid} --regid={uid} --clear-groups sleep 1000 & stray=$!
             while ! grep -q sleep /proc/$stray/comm; do sleep 0.1; done; {} strays --json --config {}",
            env!("CARGO_BIN_EXE_jobfence"),
            site.path("jobfence.conf").display()
        );
        let words = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &script];
        let done = Command::new("unshare").args(words).stdin(Stdio::null()).output().unwrap();
        format!("{} {}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
    };
    let only_reported = |text: &str, why: &str| {
        let wanted = format!("\"action\":\"report\",\"why\":\"and nothing more, since {why}\"");
        assert!(text.contains(&wanted), "{text}");
    };
    only_reported(&said(""), "no daemon is seen that starts jobs on this node");
    let beside = |name: &str| {
        let daemon = site.program("/bin/sleep", name);
        let daemon = daemon.display();
        said(&format!("{daemon} 1000 & while [ \"$(readlink /proc/$!/exe)\" != {daemon} ]; do sleep 0.1; done;"))
    };
    only_reported(&beside("condor_startd"), "under HTCondor, strays are only reported");
    only_reported(&beside("pbs_mom"), "under OpenPBS, strays are only reported");
    assert!(beside("sge_execd").contains("\"action\":\"kill\""));
}

/// What a daemon has started for whoever asked its socket is root's, and its cgroup bears the container's id.
#[test]
fn a_container_in_no_fence_is_reported_once_and_lives() {
    let Some(mut site) = site("container") else { return };
    let layout = Layout::read(&Dir::open("/proc").unwrap(), Path::new("/sys/fs/cgroup")).unwrap();
    let top = layout.hierarchies.iter().find(|one| one.has("freezer") || one.has("pids")).unwrap();
    let id = format!("{:0>64x}", std::process::id());
    let cgroup = top.mount.join(&id);
    fs::create_dir(&cgroup).unwrap();
    site.cgroups.push(cgroup.clone());
    let pid = site.start(Command::new("sleep").arg("1020"));
    fs::write(cgroup.join("cgroup.procs"), pid.to_string()).unwrap();
    let listed = |site: &Site| {
        let done = site.jobfence("strays").arg("--json").output().unwrap();
        let found: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        let it = found["processes"].as_array().unwrap().iter().find(|value| value["pid"].as_i64() == Some(pid.into()));
        it.map(|value| (value["action"].as_str().unwrap().to_owned(), value["why"].as_str().unwrap().to_owned()))
    };
    let named = format!("container {}, since 20", &id[..12]);
    for (all, action, end) in [("off", "nothing", ": Strays=off"), ("report", "report", ": after 1 s")] {
        site.configure(&format!("Strays={all} StraysGrace=1"), "Strays=off");
        let (found, why) = listed(&site).unwrap();
        assert!(found == action && why.starts_with(&named) && why.ends_with(end), "{found}: {why}");
    }
    let below = top.in_proc(&format!("/{id}"));
    site.configure(&format!("Strays=report StraysAllow={below}"), "Strays=off");
    assert_eq!(listed(&site), None, "StraysAllow spares it");

    let metrics = site.path("jobfence.prom");
    let all = format!("Strays=report StraysGrace=1 ReapInterval=1 MetricsFile={}", metrics.display());
    site.configure(&all, "Strays=off");
    let said = site.hold();
    let words = format!("a container is in no fence (Strays in jobfence.conf): {named}");
    until("the line in the log", || says(&said, &words));
    // The metrics are written again each second: by then there was another look.
    for _ in 0..4 {
        until("the metric", || says(&metrics, "jobfence_stray_containers "));
        fs::remove_file(&metrics).unwrap();
    }
    assert_eq!(fs::read_to_string(&said).unwrap().matches(&words).count(), 1);
    assert!(lives(pid));
}

#[test]
fn a_user_cannot_ask_what_others_run() {
    let Some(mut site) = site("asked") else { return };
    site.configure("Strays=kill", "Strays=kill");
    let program = site.program(env!("CARGO_BIN_EXE_jobfence"), "jobfence");
    let pid = site.run(&[program.to_str().unwrap(), "strays", "-o", "Strays=kill"]);
    let child = site.children.iter_mut().find(|child| child.id().cast_signed() == pid).unwrap();
    assert!(!child.wait().unwrap().success());
}
