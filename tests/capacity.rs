// SPDX-License-Identifier: GPL-2.0-or-later
//! What each job costs root on a host: the kernel objects that jobfence's processes hold while the job runs, counted for each entry point
//! that leaves a process behind. Some have a limit for all of root's processes together, such as 128 inotify instances.
//!
//! Each process belongs to one job. So objects are counted for a few jobs, and each further job costs the same.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

mod common;
mod stand_in;

use stand_in::StandIn;

/// The number of jobs for each entry point.
const JOBS: usize = 3;

type Objects = BTreeMap<String, usize>;

/// What a process holds: descriptors by kind, except for the three that it was started with, and locks.
fn held_by(pid: u32) -> Objects {
    let mut found = Objects::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        // Descriptors inherited from the caller of the tests do not count.
        let is_inherited =
            fs::read_link(Path::new("/proc/self/fd").join(entry.file_name())).is_ok_and(|own| own == target);
        if is_inherited || ["0", "1", "2"].iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        let target = target.to_string_lossy().into_owned();
        let kind = match target.split(':').next() {
            Some("anon_inode") => target.trim_start_matches("anon_inode:").trim_matches(['[', ']']),
            Some(kind @ ("socket" | "pipe")) => kind,
            _ if target.contains("/cgroup") => "cgroup",
            _ => "file",
        };
        *found.entry(kind.to_owned()).or_default() += 1;
    }
    let locks = fs::read_to_string("/proc/locks").unwrap();
    let is_its = |line: &&str| line.split_whitespace().any(|word| word == pid.to_string());
    let locks = locks.lines().filter(is_its).count();
    if locks > 0 {
        found.insert("lock".to_owned(), locks);
    }
    found
}

/// Waits until each process holds exactly this.
fn expect_held(door: &str, pids: &[u32], wanted: &[(&str, usize)]) {
    let wanted: Objects = wanted.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect();
    let deadline = common::soon();
    loop {
        let mut found: Vec<Objects> = pids.iter().map(|pid| held_by(*pid)).collect();
        // The number of directories depends on the layout. They are closed with the process, and have no limit but the process's own.
        found.iter_mut().for_each(|objects| objects.retain(|kind, _| kind != "cgroup"));
        if found.len() == JOBS && found.iter().all(|objects| *objects == wanted) {
            return;
        }
        assert!(Instant::now() < deadline, "{door}: {JOBS} jobs hold {found:?}, and should hold {wanted:?} each");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Ends what the test started.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            drop(child.stdin.take());
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(child.id().try_into().unwrap()),
                nix::sys::signal::Signal::SIGTERM,
            );
            let _ = child.wait();
        }
    }
}

fn lines(out: ChildStdout, count: usize) -> Vec<String> {
    BufReader::new(out).lines().take(count).map(Result::unwrap).collect()
}

#[test]
fn a_step_of_slurm_costs_root_no_kernel_object() {
    let Some(base) = common::Base::if_root("capacity", "slurm") else { return };
    let temp = tempfile::tempdir().unwrap();
    let Some(stand_in) = StandIn::or_skip(temp.path()) else { return };
    let arguments = stand_in::arguments(temp.path(), &base, "");
    let mut steps = Children(Vec::new());
    for job in 0..JOBS {
        let words =
            [format!("uid={}", common::uids()), format!("job={}", job + 1), "step=0".to_owned(), "hold".to_owned()];
        let mut command = stand_in.command(&words, &arguments);
        let mut step = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut said = BufReader::new(step.stdout.take().unwrap());
        let mut line = String::new();
        while line != "holds\n" {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0, "the stand-in has ended");
        }
        // It may print more at its end.
        std::thread::spawn(move || said.read_to_end(&mut Vec::new()));
        steps.0.push(step);
    }
    let pids: Vec<u32> = steps.0.iter().map(Child::id).collect();
    expect_held("Slurm", &pids, SLURM);
}

#[test]
fn jobfence_run_costs_root_no_kernel_object_of_a_bound() {
    let Some(base) = common::Base::if_root("capacity", "run") else { return };
    let temp = tempfile::tempdir().unwrap();
    let run = || {
        let mut command = common::command("run", &base, temp.path());
        command.args(["--", "sleep", "300"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let jobs = Children((0..JOBS).map(|_| run()).collect());
    expect_held("jobfence run", &jobs.0.iter().map(Child::id).collect::<Vec<_>>(), RUN);
}

/// Starts shepherds like execd, one for each job. It is bash, which can give a program another name.
const EXECD: &str = r#"
mount -t tmpfs none /etc/slurm
printf '%s\n' "CgroupBase=$2" "RunDir=$3/run" >/etc/slurm/jobfence.conf
begin() {
    mkdir -p "$3/spool/$job.1"
    cd "$3/spool/$job.1"
    printf '%s\n' job_owner=games job_id=$job ja_task_id=0 host_slots=1 queue=all.q job_name=x >config
    : >environment
    (exec -a sge_shepherd-$job "$1" </dev/null >/dev/null 2>&1 9<&-) &
    echo $!
}
for job in $(seq "$4"); do
    begin "$@"
done
"#;
/// It waits for them.
const WAITS: &str = "exec >/dev/null; wait";
/// It is killed while one more makes its fence: that waits for a lock of ours.
const DIES: &str = r#"
until [ -s "$3/spool/$4.1/job_pid" ]; do sleep 0.02; done
exec 9<"$(find "$3/run" -name limits.lock)"
flock 9
job=$(($4 + 1))
begin "$@"
until ls -l /proc/$!/fd | grep -q "$3/run$"; do sleep 0.02; done
kill -KILL $$
"#;

/// An execd with this end that starts `jobs` jobs, of whose shepherds `told` are told. `None`: this machine has not what it takes.
fn execd(base: &common::Base, top: &Path, end: &str, jobs: usize, told: usize) -> Option<Shepherds> {
    if !Path::new("/etc/slurm").is_dir() || !Path::new("/bin/bash").exists() {
        common::skip("needs bash and a directory /etc/slurm");
        return None;
    }
    let path = |name: &str| -> PathBuf { top.join(name) };
    fs::write(path("script"), "#!/bin/sh\necho $$ >pid\necho $$ >job_pid\nexec sleep 300\n").unwrap();
    fs::set_permissions(path("script"), fs::Permissions::from_mode(0o755)).unwrap();
    // Copied by a process that has ended: a child of another test must not have a program open for writing (ETXTBSY).
    for (from, to) in [("/bin/bash".into(), "sge_execd"), (path("script"), "sge_shepherd")] {
        assert!(Command::new("cp").arg(from).arg(path(to)).status().unwrap().success());
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--"]).arg(path("sge_execd")).arg("-ec").arg(EXECD.to_owned() + end);
    unshare.args(["sge_execd", env!("CARGO_BIN_EXE_jobfence"), &base.name]).arg(top).arg(jobs.to_string());
    let mut execd = unshare.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let pids: Vec<u32> = lines(execd.stdout.take().unwrap(), told).iter().map(|pid| pid.parse().unwrap()).collect();
    let shepherds = Shepherds { pids, execd };
    if shepherds.pids.is_empty() {
        common::skip("no mount namespace");
        return None;
    }
    let is_begun = |job: usize| {
        let text = fs::read_to_string(path(&format!("spool/{job}.1/pid"))).unwrap_or_default();
        shepherds.pids.iter().any(|pid| text.trim() == pid.to_string())
    };
    common::until("each shepherd has seen its job", || (1..=told).all(is_begun));
    Some(shepherds)
}

#[test]
fn a_job_of_grid_engine_costs_root_no_inotify_instance() {
    let Some(base) = common::Base::if_root("capacity", "gridengine") else { return };
    let temp = tempfile::tempdir().unwrap();
    let Some(shepherds) = execd(&base, temp.path(), WAITS, JOBS, JOBS) else { return };
    expect_held("Grid Engine", &shepherds.pids, GRID_ENGINE);
}

#[test]
fn a_job_of_grid_engine_has_its_shepherd_though_execd_dies_meanwhile() {
    let Some(base) = common::Base::if_root("capacity", "restart") else { return };
    let temp = tempfile::tempdir().unwrap();
    drop(execd(&base, temp.path(), DIES, 1, 2));
}

/// They pass the signal on to the job, and end its fence.
struct Shepherds {
    pids: Vec<u32>,
    execd: Child,
}

impl Drop for Shepherds {
    fn drop(&mut self) {
        for pid in &self.pids {
            let pid = nix::unistd::Pid::from_raw((*pid).try_into().unwrap());
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        }
        let _ = self.execd.wait();
    }
}

/// `/proc`, `RunDir` and the kernel's log.
const SLURM: &[(&str, usize)] = &[("file", 3)];
/// The same, its own `/proc/PID/io`, and the pipe with which it waits for its command.
const RUN: &[(&str, usize)] = &[("file", 4), ("pipe", 1)];
/// The spool; its own `/proc/PID/io`; of the shepherd's fence and of the job's `/proc` and `RunDir` each; and the signalfd with which it
/// waits for its shepherd.
const GRID_ENGINE: &[(&str, usize)] = &[("file", 6), ("signalfd", 1)];
