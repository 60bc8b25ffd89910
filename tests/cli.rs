// SPDX-License-Identifier: GPL-2.0-or-later
//! The `jobfence` command from its users' view: output, exit statuses, signals, terminal.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use jobfence::config::KEYS;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

mod common;

/// The command, with directories of its own in case it makes any.
struct Site {
    run: tempfile::TempDir,
    base: common::Base,
}

impl Site {
    fn new(test: &str) -> Self {
        let base = common::Base::new(&format!("jobfence-cli-{}-{test}", std::process::id()));
        Self { run: tempfile::tempdir().unwrap(), base }
    }

    fn command(&self, subcommand: &str) -> Command {
        common::command(subcommand, &self.base, self.run.path())
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command("run").args(args).output().unwrap()
    }
}

fn jobfence(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_jobfence")).args(args).output().unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The first process of a pid namespace sees no parent.
#[test]
fn the_first_process_of_a_pid_namespace_is_fenced() {
    let Some(base) = common::Base::if_root("cli", "pid") else { return };
    let site = Site { base, run: tempfile::tempdir().unwrap() };
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", env!("CARGO_BIN_EXE_jobfence")]).args(site.command("run").get_args());
    let done = unshare.args(["--", "sh", "-c", "echo $$"]).output().unwrap();
    if err(&done).contains("unshare failed") {
        return common::skip("no pid namespace");
    }
    assert_eq!((out(&done).as_str(), err(&done).as_str()), ("1\n", ""));
}

/// A new IPC namespace has the kernel's bounds, and not those of the site.
#[test]
fn with_an_ipc_namespace_of_its_own_a_command_keeps_the_sites_bounds() {
    let Some(base) = common::Base::if_root("cli", "ipc") else { return };
    let site = Site { base, run: tempfile::tempdir().unwrap() };
    // The "site" is an IPC namespace, so nothing of this machine changes.
    let script = "cd /proc/sys && echo 20480 >kernel/msgmnb && echo '300 4000 90 70' >kernel/sem && echo 7 >fs/mqueue/msg_max \
                  && readlink /proc/self/ns/ipc && exec \"$0\" \"$@\"";
    let look = "readlink /proc/self/ns/ipc; cd /proc/sys; cat kernel/msgmnb kernel/sem fs/mqueue/msg_max";
    for is_private in [true, false] {
        let mut unshare = Command::new("unshare");
        unshare
            .args(["--ipc", "sh", "-c", script, env!("CARGO_BIN_EXE_jobfence")])
            .args(site.command("run").get_args());
        unshare.args(["-o", if is_private { "PrivateIPC=yes" } else { "PrivateIPC=no" }]);
        let done = unshare.args(["--", "sh", "-c", look]).output().unwrap();
        if err(&done).contains("unshare failed") {
            return common::skip("no IPC namespace");
        }
        let said = out(&done);
        let lines: Vec<&str> = said.lines().collect();
        let [before, inside, bounds @ ..] = &lines[..] else { panic!("{said}{}", err(&done)) };
        assert_eq!(before != inside, is_private, "{said}");
        assert_eq!(bounds.join(" ").split_whitespace().collect::<Vec<_>>(), ["20480", "300", "4000", "90", "70", "7"]);
    }
}

/// The "host" has namespaces of its own, and mqueue is mounted in it, with a queue.
const QUEUES_OF_A_HOST: &str = "mkdir \"$0.dev\" && mount --rbind /dev \"$0.dev\" && mount -t tmpfs none /dev && mkdir /dev/mqueue /dev/shm \
    && cp -a \"$0.dev/null\" \"$0.dev/zero\" \"$0.dev/urandom\" \"$0.dev/tty\" /dev && mount -t mqueue none /dev/mqueue \
    && touch /dev/mqueue/of-host && \"$@\"; echo host: $(ls /dev/mqueue)";

/// With `PrivateIPC` alone, and beside what else gives a job a mount namespace.
#[test]
fn a_command_sees_no_queues_of_the_host() {
    let Some(base) = common::Base::if_root("cli", "queues") else { return };
    let site = Site { base, run: tempfile::tempdir().unwrap() };
    let look =
        "ls /dev/mqueue; touch /dev/mqueue/own; echo own: $(ls /dev/mqueue); umount /dev/mqueue && ls /dev/mqueue";
    for (number, (keys, is_private)) in [
        ("PrivateIPC=yes", true),
        ("PrivateIPC=yes HideProcesses=yes PrivateTmp=/dev/shm", true),
        ("HideProcesses=yes", false),
    ]
    .into_iter()
    .enumerate()
    {
        let mut unshare = Command::new("unshare");
        let place = site.run.path().join(number.to_string());
        unshare.args(["--ipc", "--mount", "sh", "-c", QUEUES_OF_A_HOST]).arg(place).arg(env!("CARGO_BIN_EXE_jobfence"));
        unshare.args(site.command("run").get_args());
        unshare.args(keys.split(' ').flat_map(|key| ["-o", key]));
        let done = unshare.args(["--", "sh", "-c", look]).output().unwrap();
        if err(&done).contains("unshare failed") {
            return common::skip("no namespaces");
        }
        // Root may take the mount away, and sees what is below it: it is the host's, and covered by one mount alone.
        let (seen, left) = match is_private {
            true => ("own: own\nof-host\n", "host: of-host\n"),
            false => ("of-host\nown: of-host own\n", "host: of-host own\n"),
        };
        assert_eq!(out(&done), format!("{seen}{left}"), "{keys}: {}", err(&done));
    }
}

/// The "host" is a mount namespace, in which these are mounted below /proc: a file, a read-only part, a masked file, and one below another.
const PROC_OF_A_HOST: &str = "mount --bind \"$2\" /proc/version && mount --bind /dev/null /proc/loadavg && mount -t tmpfs none /proc/fs \
    && mkdir /proc/fs/in && mount -t tmpfs none /proc/fs/in && echo deep >/proc/fs/in/file \
    && mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys";

/// What a program of nobody's sees: another's process by two ways, its own, what the host has mounted, and what it can do about it.
const LOOK_AT_PROC: &str = "cat /proc/$1/cmdline $1/cmdline 2>/dev/null | tr '\\0' ' '; echo; ls /proc | grep -cx $1
    cat /proc/$$/comm /proc/version /proc/fs/in/file; stat -c %t,%T /proc/loadavg; grep ' /proc/sys ' /proc/self/mountinfo | tail -1 | grep -c ' ro'
    unshare -Urm umount /proc 2>/dev/null && echo uncovered; unshare -Urm mount --bind / /mnt 2>/dev/null && echo shown; true";

/// With `HideProcesses`, and the host as it was.
#[test]
fn a_command_sees_no_processes_of_others() {
    let Some(base) = common::Base::if_root("cli", "hide") else { return };
    let site = Site { base, run: tempfile::tempdir().unwrap() };
    let version = site.run.path().join("version");
    fs::write(&version, "a version\n").unwrap();
    let mut secret = Command::new("sh").args(["-c", "read x", "a-secret"]).stdin(Stdio::piped()).spawn().unwrap();
    let pid = secret.id().to_string();
    let script = format!(
        "{PROC_OF_A_HOST}; pid=$1; shift 2; cp /proc/self/mountinfo \"$0.before\"; cd /proc; \"$@\"; cd /
         cmp /proc/self/mountinfo \"$0.before\" && setpriv --reuid 65534 --clear-groups ls -d /proc/$pid"
    );
    for is_hidden in [true, false] {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-ec", &script]).arg(site.run.path().join("mounts")).arg(&pid).arg(&version);
        unshare.arg(env!("CARGO_BIN_EXE_jobfence")).args(site.command("run").get_args());
        unshare.args(["-o", if is_hidden { "HideProcesses=yes" } else { "HideProcesses=no" }, "--user", "65534"]);
        let done = unshare.args(["--", "sh", "-c", LOOK_AT_PROC, "sh", &pid]).output().unwrap();
        if err(&done).contains("unshare failed") {
            common::skip("no mount namespace");
            break;
        }
        let said = out(&done);
        let seen = if is_hidden { "\n0\n" } else { "sh -c read x a-secret sh -c read x a-secret \n1\n" };
        assert_eq!(said, format!("{seen}sh\na version\ndeep\n1,3\n1\n/proc/{pid}\n"), "{}", err(&done));
    }
    // A container of a user's mounts a proc of its own, if the system lets users do that.
    let container = |key: &str, prepare: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args([
            "--mount",
            "sh",
            "-ec",
            &format!("{prepare}; exec \"$@\""),
            "sh",
            env!("CARGO_BIN_EXE_jobfence"),
        ]);
        unshare.args(site.command("run").get_args()).args(["-o", key, "--user", "65534", "--"]);
        out(&unshare.args(["unshare", "-Urpf", "--mount-proc", "echo", "in it"]).output().unwrap())
    };
    // A host without mounts below /proc, since the kernel refuses a user a new proc where parts of the old one are covered.
    let bare = "awk '$5 ~ /^.proc./ { print $5 }' /proc/self/mountinfo | sort -r | while read -r point; do umount -l \"$point\"; done";
    for prepare in ["true", bare] {
        assert_eq!(container("HideProcesses=yes", prepare), container("HideProcesses=no", prepare), "{prepare}");
    }
    drop(secret.stdin.take());
    secret.wait().unwrap();
}

/// At each call by which proc is mounted, which strace answers.
#[test]
fn a_command_that_would_see_processes_of_others_does_not_run() {
    let Some(base) = common::Base::if_root("cli", "seen") else { return };
    let site = Site { base, run: tempfile::tempdir().unwrap() };
    let run = |faults: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-ec", "mount -t tmpfs none /proc/fs; exec \"$@\"", "sh"]);
        unshare.args(["strace", "-f", "-qq", "-o", "/dev/null"]);
        unshare.args(faults.iter().map(|one| format!("-einject={one}")));
        unshare.arg(env!("CARGO_BIN_EXE_jobfence")).args(site.command("run").get_args());
        unshare.args(["-o", "HideProcesses=yes", "--", "echo", "it ran"]).output().unwrap()
    };
    let control = run(&[]);
    if err(&control).contains("unshare failed") || err(&control).contains("strace: ") {
        return common::skip("no mount namespace, or no strace");
    }
    assert_eq!(out(&control), "it ran\n", "{}", err(&control));
    let old = "Linux 5.8";
    for (fault, why) in [
        ("fsopen:error=ENOSYS", old),
        ("fsconfig:error=EINVAL:when=1", old),
        ("fsconfig:error=ENOMEM:when=2", "/proc: "),
        ("fsconfig:error=ENOMEM:when=3", "/proc: "),
        ("fsconfig:error=EINVAL:when=3", "/proc: "),
        ("fsmount:error=EPERM", "/proc: "),
        ("move_mount:error=EPERM:when=1", "/proc: "),
        ("open_tree:error=EMFILE", "/proc/fs"),
        ("move_mount:error=ENOMEM:when=2", "/proc/fs"),
    ] {
        let done = run(&[fault]);
        assert_eq!((out(&done).as_str(), done.status.success()), ("", false), "{fault}: {}", err(&done));
        assert!(err(&done).contains("HideProcesses") && err(&done).contains(why), "{fault}: {}", err(&done));
        assert_eq!(err(&done).contains(old), why == old, "{fault}: {}", err(&done));
    }
    // What is left where the host has covered parts of proc is said before.
    let check = |faults: &[&str]| {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null"]).args(faults.iter().map(|one| format!("-einject={one}")));
        strace.args([env!("CARGO_BIN_EXE_jobfence"), "check", "-o", "HideProcesses=yes"]);
        out(&strace.output().unwrap())
    };
    for (fault, why) in
        [("fsopen:error=EPERM", "EPERM"), ("fsconfig:error=EPERM:when=3", "EPERM"), ("fsmount:error=ENOMEM", "ENOMEM")]
    {
        let said = check(&[fault]);
        assert!(said.contains("HideProcesses) on /proc") && said.contains(why), "{fault}: {said}");
    }
    assert!(!check(&[]).contains("HideProcesses) on /proc"));
}

/// Runs in a mount namespace of its own, in whose `/etc` these shell lines have made files in empty directories `slurm` and `jobfence`.
fn with_etc(made: &str, args: &str) -> Option<Output> {
    let kept = "passwd group nsswitch.conf";
    let script = format!(
        "cd /etc && mount -t tmpfs none /etc && cp {kept} /etc && cd /etc && mkdir slurm jobfence && {{ {made}; }} && exec \"$0\" {args}"
    );
    let mut unshare = Command::new("unshare");
    let done = unshare.args(["--mount", "sh", "-ec", &script, env!("CARGO_BIN_EXE_jobfence")]).output();
    match done {
        Ok(done) if !err(&done).contains("unshare failed") => Some(done),
        _ => None,
    }
}

#[test]
fn the_configuration_of_the_pbs_hook_is_converted() {
    let temp = tempfile::tempdir().unwrap();
    let (site, conf) = (temp.path().join("pbs_cgroups.CF"), temp.path().join("jobfence.conf"));
    let convert = |text: &str| {
        fs::write(&site, text).unwrap();
        Command::new(env!("CARGO_BIN_EXE_jobfence")).arg("pbs-config").arg(&site).output().unwrap()
    };
    let output = convert(
        "{\"exclude_hosts\": [\"login*\"],\n \"cgroup\": {\"cpu\": {\"enabled\": \"vntype not in: a\"},\n  \"memory\": {\"enabled\": true,\n\
         \"default\": \"256MB\", \"reserve_amount\": \"1GB\"}}}\n",
    );
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.lines().all(|line| line.starts_with(&format!("jobfence: {}:", site.display()))), "{said}");
    assert!(said.contains("pbs_cgroups.CF:4:21: memory.reserve_amount: "), "{said}");
    // The result is a valid file, and has the described effect.
    fs::write(&conf, &output.stdout).unwrap();
    let explain = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
        command.args(["explain", "--cpus", "2", "--config", conf.to_str().unwrap()]).args(words);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let on_a_node = explain(&["--vnode-type", "b", "--node", "n1"]);
    assert!(on_a_node.contains("memory not said, for which DefaultRAMSpace=256M"), "{on_a_node}");
    assert!(on_a_node.contains("CPU weight by CPUPolicy=weight"), "{on_a_node}");
    assert!(explain(&["--vnode-type", "a", "--node", "login2"]).contains("sections   [Host=login*] [VnodeType=a]"));

    let output = convert("{\"kill_timeout\":\n  \"soon\"}");
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = format!("jobfence: {}:2:3: found \"soon\", expected kill_timeout to be a number", site.display());
    assert!(output.status.code() == Some(1) && output.stdout.is_empty() && said.starts_with(&expected), "{said}");
}

#[test]
fn the_name_of_a_configuration_that_leads_nowhere_is_a_mistake() {
    if !nix::unistd::geteuid().is_root() {
        return common::skip("needs root");
    }
    let explain = "explain --cpus 1";
    let Some(none) = with_etc("true", explain) else {
        return common::skip("no mount namespace can be made here");
    };
    assert!(none.status.success() && out(&none).contains("defaults"), "{none:?}");
    for (made, found) in [
        (
            "ln -s /shared/jobfence.conf slurm/jobfence.conf",
            "the symbolic link to /shared/jobfence.conf, which does not exist",
        ),
        (
            "echo MaxProcesses=9 > jobfence/jobfence.conf; ln -s gone slurm/jobfence.conf",
            "the symbolic link to gone, which does not exist",
        ),
    ] {
        for args in [explain, "check", "reap"] {
            let done = with_etc(made, args).unwrap();
            assert!(!done.status.success(), "{args}: {done:?}");
            let expected = format!("/etc/slurm/jobfence.conf: found {found}, expected a file that can be read");
            assert!(err(&done).contains(&expected), "{args}: {done:?}");
        }
    }
    // The target of a link is read.
    let linked = with_etc("echo MaxProcesses=9 > slurm/there; ln -s there slurm/jobfence.conf", explain).unwrap();
    assert!(linked.status.success() && out(&linked).contains("MaxProcesses=9"), "{linked:?}");
}

#[test]
fn the_check_names_the_file_that_counts_and_those_that_do_not() {
    if !nix::unistd::geteuid().is_root() {
        return common::skip("needs root");
    }
    let (slurms, own) = ("/etc/slurm/jobfence.conf", "/etc/jobfence/jobfence.conf");
    let (make, named) = (|file: &str| format!("echo Mode=off > {file}"), "/etc/named.conf");
    let both = [make(slurms), make(own)].join("; ");
    let understood = |file: &str| format!("{file} is understood");
    let unread = |file: &str, other: &str, why: &str| format!("{file} is not read, since {other} {why}");
    let nowhere = format!("defaults (there is neither {slurms} nor {own})");
    for (made, more, expected) in [
        ("true".to_owned(), "-o Mode=off".to_owned(), vec![nowhere]),
        (make(own), String::new(), vec![understood(own)]),
        // A site whose nodes have no directory of Slurm's.
        (format!("rmdir slurm; {}", make(own)), String::new(), vec![understood(own)]),
        (make(slurms), String::new(), vec![understood(slurms)]),
        (both.clone(), String::new(), vec![understood(slurms), unread(own, slurms, "exists")]),
        // One file by two names.
        (format!("{}; ln -s {own} {slurms}", make(own)), String::new(), vec![understood(slurms)]),
        (format!("{}; ln -s {slurms} {own}", make(slurms)), String::new(), vec![understood(slurms)]),
        (
            format!("{both}; {}", make(named)),
            format!("--config {named}"),
            vec![understood(named), unread(slurms, named, "is named"), unread(own, named, "is named")],
        ),
        (both, format!("--config {own}"), vec![understood(own), unread(slurms, own, "is named")]),
    ] {
        let Some(done) = with_etc(&made, &format!("check {more}")) else {
            return common::skip("no mount namespace can be made here");
        };
        let said = out(&done);
        let lines: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("configuration  ")).collect();
        assert_eq!(lines, expected, "{made}: {done:?}");
    }
    // What is not understood is not passed over.
    let wrong = format!("echo Nonsense=1 > {slurms}; {}", make(own));
    let done = with_etc(&wrong, "check").unwrap();
    assert!(!done.status.success() && err(&done).contains(&format!("{slurms}:1:1: found \"Nonsense\"")), "{done:?}");
}

#[test]
fn a_prolog_notes_down_what_slurmd_says_and_never_fails() {
    let site = Site::new("prolog");
    let called = |which: &str, variables: &[(&str, &str)], more: &[&str]| {
        let mut command = site.command(which);
        let done = command.args(more).env_clear().envs(variables.iter().copied()).output().unwrap();
        (done.status.code(), err(&done))
    };
    let record = site.run.path().join("run/jobs/7");
    // With an output that cannot be written, as in a log on a full disk, or has no reader any more.
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (reader, unread) = nix::unistd::pipe().unwrap();
    drop(reader);
    for stderr in [Stdio::from(full), Stdio::from(unread)] {
        let unheard = site.command("prolog").env_clear().stderr(stderr).status().unwrap();
        assert_eq!(unheard.code(), Some(0));
    }
    // Devices that every machine has stand for GPUs.
    let slurm_conf = site.run.path().join("slurm.conf");
    fs::write(&slurm_conf, "NodeName=n1 CPUs=2 Gres=gpu:4\n").unwrap();
    fs::write(site.run.path().join("gres.conf"), "Name=gpu File=/dev/null,/dev/zero,/dev/full,/dev/random\n").unwrap();
    let said = [
        ("SLURM_JOB_ID", "7"),
        ("SLURM_JOB_UID", "1001"),
        ("SLURM_JOB_PARTITION", "gpu"),
        ("SLURM_JOB_CPUS_PER_NODE", "2"),
        ("SLURM_JOB_GPUS", "1,3"),
        ("SLURM_CONF", slurm_conf.to_str().unwrap()),
        // Variables that users can add have another prefix.
        ("SPANK_SLURM_JOB_QOS", "high"),
    ];
    assert_eq!(called("epilog", &said, &[]), (Some(0), String::new()));
    assert!(!record.exists() && !site.run.path().join("run/jobs").exists());
    for partition in ["debug", "gpu"] {
        let said = said.map(|(key, value)| (key, if key == "SLURM_JOB_PARTITION" { partition } else { value }));
        assert_eq!(called("prolog", &said, &[]), (Some(0), String::new()));
    }
    let text = fs::read_to_string(&record).unwrap();
    let facts = "uid=1001\npartition==gpu\nqos=?\naccount=~\ncpus=2\n";
    let gpus = "gpus=1,3\ngpu_devices=/dev/zero,/dev/random\ngpus_unknown=\nend\n";
    assert!(text.ends_with(&format!("{facts}{gpus}")), "{text}");
    // With two nodes the numbers could be the other node's.
    let two = said.map(|(key, value)| (key, if key == "SLURM_JOB_CPUS_PER_NODE" { "2(x2)" } else { value }));
    assert_eq!(called("prolog", &two, &[]), (Some(0), String::new()));
    let text = fs::read_to_string(&record).unwrap();
    assert!(text.contains("\ngpus=\ngpu_devices=\ngpus_unknown=the numbers"), "{text}");
    for _ in 0..2 {
        assert_eq!(called("epilog", &said, &[]), (Some(0), String::new()));
        assert!(!record.exists());
    }
    // A failure would drain the node.
    for (which, variables, more, reason) in [
        ("prolog", &said[1..], &[][..], "SLURM_JOB_ID is not in the environment"),
        ("prolog", &[("SLURM_JOB_ID", "x")], &[], "SLURM_JOB_ID is not a number"),
        ("prolog", &said[..1], &[], "SLURM_JOB_UID is not in the environment"),
        ("prolog", &said, &["-o", "Mode=perhaps"], "expected Mode to be enforce"),
        ("prolog", &said, &["-o", "CgroupMountpoint=/nonexistent"], "/nonexistent"),
        ("epilog", &said[1..], &[], "SLURM_JOB_ID is not in the environment"),
        ("epilog", &said, &["--config", "/nonexistent"], "No such file"),
    ] {
        let (status, stderr) = called(which, variables, more);
        assert_eq!(status, Some(0), "{which} {more:?}");
        assert!(stderr.contains(reason) && stderr.contains("; "), "{which}: {stderr}");
        assert!(!record.exists());
    }
    // A wrong command in slurm.conf is reported.
    assert_eq!(called("prolog", &said, &["--job", "7"]).0, Some(2));
}

/// The lines of the man page that ask squeue for the QOS, as an administrator would copy them.
fn recipe_for_the_qos() -> String {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/man/jobfence.8")).unwrap();
    let block = page
        .split(".EX\n")
        .skip(1)
        .filter_map(|rest| rest.split(".EE\n").next())
        .find(|block| block.contains("squeue"));
    block.expect("the recipe").replace("\\-", "-").replace("\\(ha", "^")
}

#[test]
fn the_manuals_question_for_the_qos_leaves_it_unknown_when_it_is_not_answered() {
    let site = Site::new("recipe");
    let temp = tempfile::tempdir().unwrap();
    let bin = temp.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let write = |name: &str, text: &str| {
        fs::write(bin.join(name), text).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    };
    // The recipe's command, with this test's directories.
    let ours = site.command("prolog");
    let words: Vec<_> = ours.get_args().map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    write("jobfence", &format!("#!/bin/sh\nexec '{}' {}\n", env!("CARGO_BIN_EXE_jobfence"), words.join(" ")));
    let recipe = recipe_for_the_qos();
    let installed = "/usr/local/sbin/jobfence prolog";
    assert!(recipe.contains(installed), "{recipe}");
    let recipe = recipe.replace(installed, bin.join("jobfence").to_str().unwrap());
    for (squeue, qos) in [
        ("echo 7 restricted", "qos=~restricted\n"),
        // For an array there is a line for each live task; the last one has the array's number.
        ("echo 9 one; echo 7 two; echo 17 three; echo 7_8 four", "qos=~two\n"),
        ("echo 9 one", "qos=?\n"),
        ("exit 1", "qos=?\n"),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", "qos=?\n"),
        ("echo 7 half of; exit 1", "qos=?\n"),
        ("echo", "qos=?\n"),
        ("echo '7 '", "qos=?\n"),
        ("echo '7 (null)'", "qos=?\n"),
        ("echo 7 one; echo 7 another", "qos=?\n"),
    ] {
        write("squeue", &format!("#!/bin/sh\n{squeue}\n"));
        let done = Command::new("sh")
            .args(["-e", "-c", &recipe])
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
            .envs([("SLURM_JOB_ID", "7"), ("SLURM_JOB_UID", "1001"), ("SLURM_JOB_PARTITION", "gpu")])
            // slurmctld does not check it.
            .env("SLURM_CONF", temp.path())
            .output()
            .unwrap();
        assert!(done.status.success(), "{squeue}: {}", err(&done));
        let record = fs::read_to_string(site.run.path().join("run/jobs/7")).unwrap();
        assert!(record.contains(qos), "{squeue}: {record}");
    }
}

#[test]
fn check_shows_sections_as_they_are_read() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("jobfence.conf");
    let text = "MaxProcesses=1000\n[Partition=gpu,debug]\nMaxProcesses=200\nIOMax=\"/ rbps=1M\"\n[Group=\"domain users\"]\nMode=observe\n";
    fs::write(&file, text).unwrap();
    fs::write(temp.path().join("slurm.conf"), "ClusterName=x\n").unwrap();
    let check = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
        let command = command.args(["check", "-o", "Mode=off", "--config"]).arg(&file).args(more);
        out(&command.env_remove("SLURM_CONF").output().unwrap())
    };
    let short = check(&[]);
    assert!(short.contains("section        [Partition=gpu,debug] MaxProcesses, IOMax\n"), "{short}");
    assert!(short.contains("slurm.conf has no Prolog="), "{short}");
    fs::write(temp.path().join("slurm.conf"), "Prolog=/etc/slurm/prolog\n").unwrap();
    assert!(!check(&[]).contains("Prolog="));
    // The output is a valid configuration for the same sections.
    let long = check(&["--keys"]);
    assert!(long.starts_with("verdict        Mode=off: "), "{long}");
    let (_, sections) = long.split_once("[Partition").unwrap();
    assert_eq!(format!("MaxProcesses=1000\n[Partition{sections}"), text);
}

#[test]
fn check_names_what_sections_name_and_is_not_there() {
    let site = Site::new("names");
    let temp = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(temp.path().join(name), text).unwrap();
    write(
        "jobfence.conf",
        "[Group=root,daemonn,4000000]\nMaxProcesses=1\n[User=0,roott]\nMaxProcesses=2\n[Partition=coursez,gpu]\nMaxProcesses=3\n\
         [Node=n[7-9]]\nMaxProcesses=4\n[Node=n*]\nMaxProcesses=5\n[QOS=x]\nMaxProcesses=6\n[PE=smp]\nMaxProcesses=7\n",
    );
    // Where namespaces are available, daemons of tests running at the same time are hidden.
    let is_alone = Command::new("unshare").args(ALONE).arg("true").output().is_ok_and(|done| done.status.success());
    let check = || {
        let mut command = Command::new(if is_alone { "unshare" } else { env!("CARGO_BIN_EXE_jobfence") });
        if is_alone {
            command.args(ALONE).arg(env!("CARGO_BIN_EXE_jobfence"));
        }
        command.args(site.command("check").get_args()).arg("--config").arg(temp.path().join("jobfence.conf"));
        let all = out(&command.env_remove("SLURM_CONF").output().unwrap());
        all.lines().filter(|line| line.contains("]: ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let users = [
        "section        [Group=root,daemonn,4000000]: this host knows no group daemonn; did you mean daemon?",
        "section        [User=0,roott]: this host knows no user roott; did you mean root?",
    ];
    assert_eq!(check(), users, "without slurm.conf");
    write(
        "slurm.conf",
        "Include parts.conf\nPartitionName=gpu Nodes=n1\nNodeName=DEFAULT CPUs=1\nNodeName=n[1-6] CPUs=1\n",
    );
    write("parts.conf", "PartitionName=courses Nodes=n1\n");
    let parts = "section        [Partition=coursez,gpu]: there is no partition or queue coursez; did you mean courses?";
    let nodes = "section        [Node=n[7-9]]: slurm.conf has no such node";
    assert_eq!(check(), [users[0], users[1], parts, nodes]);
    write("parts.conf", "PartitionName=courses Nodes=n1\nMaxNodeCount=10\n");
    assert_eq!(check(), [users[0], users[1], parts], "nodes come and go");
}

#[test]
fn check_names_what_else_mounts_a_proc() {
    let site = Site::new("mounts_a_proc");
    let temp = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(temp.path().join(name), text).unwrap();
    write("slurm.conf", "NamespaceType=namespace/linux\n");
    write("plugstack.conf", "include more.conf\n");
    write("more.conf", "required /usr/lib/slurm/spank_pyxis.so\n");
    let check = |keys: &str| {
        write("jobfence.conf", keys);
        let mut command = site.command("check");
        command.arg("--config").arg(temp.path().join("jobfence.conf"));
        let all = String::from_utf8(command.env_remove("SLURM_CONF").output().unwrap().stdout).unwrap();
        let said = ["NamespaceType=namespace/linux: with CLONE_NEWPID ", "plugstack.conf loads pyxis: "];
        said.map(|said| all.contains(said))
    };
    assert_eq!([check("HideProcesses=yes\n"), check("PrivateTmp=/tmp\n")], [[true; 2], [false; 2]]);
    write("slurm.conf", "JobContainerType=job_container/tmpfs\n");
    write("more.conf", "");
    assert_eq!(check("HideProcesses=yes\n"), [false; 2]);
}

/// Only its own processes are visible.
const ALONE: [&str; 4] = ["--mount", "--pid", "--fork", "--mount-proc"];

/// The output of OpenPBS 23.06 and Grid Engine 8.1.9, from programs in their place.
const SCHEDULERS: [(&str, &str, &str); 2] = [
    (
        "pbs_mom",
        "qstat",
        "[ \"$* $PBS_CONF_FILE\" = '-Q -f /x/pbs.conf' ] || exit 1\n\
         printf 'Queue: workq\\n    queue_type = Execution\\n    enabled = True\\n\\nQueue: long\\n    total_jobs = 0\\n\\n'",
    ),
    (
        "sge_execd",
        "qconf",
        "case $* in -sql) printf 'all.q\\nlong\\n' ;; -spl) printf 'make\\nmpi\\n' ;; -sprjl) echo no project list defined >&2; exit 1 ;; \
         *) exit 1; esac",
    ),
];

#[test]
fn what_sections_name_is_asked_of_the_daemons_that_run_here() {
    if !nix::unistd::geteuid().is_root() {
        return common::skip("only root's daemons count");
    }
    let temp = tempfile::tempdir().unwrap();
    let path = |name: &str| temp.path().join(name);
    for directory in ["sbin", "bin"] {
        fs::create_dir(path(directory)).unwrap();
    }
    for (daemon, program, script) in SCHEDULERS {
        fs::copy("/bin/sleep", path("sbin").join(daemon)).unwrap();
        fs::write(path("bin").join(program), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path("bin").join(program), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(
        path("jobfence.conf"),
        "[Queue=long,lng]\nMaxProcesses=1\n[Project=p1]\nMaxProcesses=2\n[PE=mpi,mpj]\nMaxProcesses=3\n[Account=lab]\nMaxProcesses=4\n",
    )
    .unwrap();
    let site = Site::new("daemons");
    // Of all that runs on this machine, the command sees only this daemon.
    let beside = |daemon: &str, subcommand: &str, more: &[&str]| {
        let script = format!(
            "PBS_CONF_FILE=/x/pbs.conf sbin/{daemon} 1000 & \
             until [ \"$(cat /proc/$!/comm)\" = {daemon} ]; do kill -0 $! || exit; sleep 0.01; done; \"$0\" \"$@\""
        );
        let mut unshare = Command::new("unshare");
        unshare.args(ALONE).args(["sh", "-c", &script]);
        unshare.arg(env!("CARGO_BIN_EXE_jobfence")).args(site.command(subcommand).get_args());
        unshare.arg("--config").arg(path("jobfence.conf")).args(more);
        let programs = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", path("bin").display());
        let done = unshare.current_dir(temp.path()).env("PATH", programs).env_remove("SLURM_CONF").output();
        done.ok().filter(|done| !err(done).contains("unshare failed")).map(|done| out(&done))
    };
    let unknown = [
        "section        [Queue=long,lng]: there is no partition or queue lng; did you mean long?",
        "section        [Project=p1]: there is no project p1",
        "section        [PE=mpi,mpj]: there is no parallel environment mpj; did you mean mpi?",
    ];
    for (daemon, lines, is_project_claimed) in [("pbs_mom", &unknown[..1], true), ("sge_execd", &unknown, false)] {
        let Some(said) = beside(daemon, "check", &[]) else { return common::skip("no namespaces") };
        let found: Vec<&str> = said.lines().filter(|line| line.contains("]: there is no")).collect();
        assert_eq!(found, lines, "{daemon}: {said}");
        // For explain, too, a job's user cannot set facts.
        let job = ["--cpus=1", "--account=lab", "--project=p1", "--partition=x", "--pe=", "--qos=", "--vnode-type="];
        let said = beside(daemon, "explain", &job).unwrap();
        assert!(said.contains("account unknown (lab, as its user says)"), "{daemon}: {said}");
        assert_eq!(said.contains(", project p1"), !is_project_claimed, "{daemon}: {said}");
        let trusted = beside(daemon, "explain", &[&job[..], &["-o", "TrustAccount=yes"]].concat()).unwrap();
        assert!(trusted.contains("sections   [Project=p1] [Account=lab]\n"), "{daemon}: {trusted}");
    }
}

#[test]
fn check_says_what_is_not_observed() {
    let site = Site::new("observed");
    let temp = tempfile::tempdir().unwrap();
    let top = temp.path().to_str().unwrap();
    let check = |keys: &[&str]| {
        let mut command = site.command("check");
        command.args(keys.iter().flat_map(|key| ["-o".to_owned(), key.replace('@', top)]));
        let all = out(&command.output().unwrap());
        let lines = all.lines().filter_map(|line| line.strip_prefix("usage          "));
        lines.map(|line| line.replace(top, "@")).collect::<Vec<_>>()
    };
    assert_eq!(check(&["UsageLog=@/log/usage.jsonl", "MetricsFile=@/x.prom", "SampleInterval=5"]), [""; 0]);
    assert_eq!(
        check(&["UsageLog=@/a/log/usage.jsonl", "MetricsFile=@/b/x.prom"]),
        [
            "UsageLog: no line is written, since there is no directory @/a",
            "MetricsFile: no figures are written, since there is no directory @/b",
        ]
    );
    assert_eq!(
        check(&["MetricsFile=@/x.txt", "StoreUsage=admincomment", "SampleInterval=5"]),
        [
            "MetricsFile: @/x.txt does not end in .prom, and node_exporter reads no other files",
            "StoreUsage: nothing is stored without UsageLog",
            "SampleInterval: without UsageLog, the samples of a step go when it ends",
        ]
    );
    assert_eq!(
        check(&["IdleAfter=30m", "GPUIdleAfter=1h"]),
        [
            "IdleAfter: no job is seen to be idle without SampleInterval",
            "GPUIdleAfter: no job is seen to be idle without SampleInterval",
        ]
    );
    fs::create_dir(temp.path().join("open")).unwrap();
    fs::set_permissions(temp.path().join("open"), fs::Permissions::from_mode(0o777)).unwrap();
    let said = check(&["UsageLog=@/open/usage.jsonl"]);
    assert!(said.len() == 1 && said[0].starts_with("UsageLog: only root may be able to write"), "{said:?}");
}

#[test]
fn help_and_mistakes() {
    let help = jobfence(&["--help"]);
    assert!(help.status.success());
    for subcommand in ["check", "explain", "run", "reap", "prolog", "epilog", "adopt", "host", "hold"] {
        assert!(out(&help).contains(subcommand), "{}", out(&help));
        assert!(jobfence(&[subcommand, "--help"]).status.success());
    }
    assert_eq!(jobfence(&["--version"]).status.code(), Some(0));
    assert_eq!(jobfence(&["chekc"]).status.code(), Some(2));
    let wrong = jobfence(&["run", "--cpus", "many", "--", "true"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(err(&wrong).contains("expected a number of CPUs"), "{}", err(&wrong));
    for (option, value, expected) in [
        ("--user", "nosuch-user", "expected a user of this node, by name or number"),
        ("--step", "foo", "expected batch, extern, interactive or a number"),
        ("--step", "-1", "expected batch, extern, interactive or a number"),
        ("--step", "", "expected batch, extern, interactive or a number"),
    ] {
        let wrong = jobfence(&["explain", "--cpus=1", &format!("{option}={value}")]);
        // Which steps exist depends on the scheduler, and that on the job.
        let status = if option == "--step" { 1 } else { 2 };
        assert_eq!(wrong.status.code(), Some(status), "{option}={value}: {}", out(&wrong));
        assert!(err(&wrong).contains(expected), "{}", err(&wrong));
    }
    // A uid without a user here is accepted.
    for (option, value) in [("--user", "4000000"), ("--user", "root"), ("--step", "17"), ("--step", "extern")] {
        let right = jobfence(&["explain", "--cpus=1", &format!("{option}={value}")]);
        assert_ne!(right.status.code(), Some(2), "{option}={value}: {}", err(&right));
    }
}

#[test]
fn check_says_what_is_wrong_and_where() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("jobfence.conf");
    fs::write(&file, "# fine\nConstrianRAMSpace=yes\nCPUQuotaPercent=0\n").unwrap();
    let file = file.to_str().unwrap();
    let check = jobfence(&["check", "--config", file]);
    assert_eq!(check.status.code(), Some(1));
    let said = err(&check);
    assert!(said.contains(&format!("{file}:2:1: found \"ConstrianRAMSpace\"")), "{said}");
    assert!(said.contains("did you mean ConstrainRAMSpace"), "{said}");
    assert!(said.contains(&format!("{file}:3:")), "{said}");
}

/// A number member of this JSON.
fn member(json: &str, name: &str) -> u64 {
    let (_, rest) = json.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name} in {json}"));
    rest.split([',', '}']).next().unwrap().parse().unwrap()
}

#[test]
fn a_host_says_what_jobs_can_be_granted() {
    let host = |args: &[&str]| {
        let done = Command::new(env!("CARGO_BIN_EXE_jobfence")).arg("host").args(args).output().unwrap();
        assert!(done.status.success(), "{args:?}: {done:?}");
        out(&done)
    };
    let json = host(&["--json"]);
    let mem = member(&json, "mem_bytes");
    let left = member(&json, "total_bytes") - member(&json, "system_bytes");
    assert!(mem > 0 && mem <= left && left - mem < member(&json, "unit_bytes"), "{json}");
    assert!(mem.is_multiple_of(256 << 20), "{json}");
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap().matches("processor\t").count();
    assert!((1..=cpus as u64).contains(&member(&json, "ncpus")), "{json}");
    // Other tests use memory meanwhile, but less than this.
    let less = host(&["--json", "--reserve", "1G"]);
    let less = member(&less, "mem_bytes");
    assert!(mem - less >= 512 << 20 && mem - less <= 1536 << 20, "{mem} {less}");
    // Input for qmgr, with the reasons as comments, and no comment behind the last command that would hide it.
    let commands = host(&["--pbs", "--node", "n1[0]"]);
    let (reasons, commands): (Vec<_>, Vec<_>) = commands.lines().partition(|line| line.starts_with("# "));
    assert!(reasons.iter().any(|line| line.starts_with("# mem ")), "{reasons:?}");
    let set = |name: &str| {
        let start = format!("set node n1[0] resources_available.{name} = ");
        commands.iter().find_map(|line| line.strip_prefix(&start)).unwrap_or_else(|| panic!("{commands:?}"))
    };
    assert!(set("mem").ends_with("kb") && set("vmem") == set("mem") && set("ncpus").parse::<u32>().is_ok());
    assert_eq!(commands.len(), 3, "{commands:?}");
    // A line of slurm.conf: no more than slurmd itself finds.
    let line = host(&["--slurm", "--node", "n1"]);
    let (reasons, lines): (Vec<_>, Vec<_>) = line.lines().partition(|line| line.starts_with("# "));
    assert!(reasons.iter().any(|line| line.starts_with("# mem ")) && lines.len() == 1, "{line}");
    let field = |line: &str, name: &str| -> Option<u64> {
        line.split_whitespace().find_map(|word| word.strip_prefix(name))?.parse().ok()
    };
    assert!(lines[0].starts_with("NodeName=n1 ") && field(lines[0], "RealMemory=").is_some(), "{line}");
    match Command::new("slurmd").arg("-C").output() {
        Ok(found) if found.status.success() => {
            let found = out(&found);
            assert!(field(lines[0], "RealMemory=") < field(&found, "RealMemory="), "{line}{found}");
            if let Some(cpus) = field(lines[0], "CPUs=") {
                assert_eq!(Some(cpus), field(&found, "CPUs="), "{line}{found}");
            }
        }
        _ => common::skip("slurmd is not installed here: its own line was not compared"),
    }
    let named = tempfile::tempdir().unwrap();
    fs::write(named.path().join("pbs.conf"), "PBS_MOM_NODE_NAME=mom-7\n").unwrap();
    let by_conf = Command::new(env!("CARGO_BIN_EXE_jobfence"))
        .args(["host", "--pbs"])
        .env("PBS_CONF_FILE", named.path().join("pbs.conf"))
        .output()
        .unwrap();
    assert!(out(&by_conf).contains("\nset node mom-7 resources_available.mem = "), "{by_conf:?}");
    for (args, expected) in [
        (&["--pbs", "--json"][..], "cannot be used with"),
        (&["--slurm", "--json"], "cannot be used with"),
        (&["--node", "n1"], "--pbs"),
        (&["--pbs", "--node", "n1; delete node n2"], "expected the name of a node of PBS"),
        (&["--reserve", "all"], "expected a size of at least 1M, such as 2G, or a percentage below 100"),
    ] {
        let done = jobfence(&[&["host"], args].concat());
        assert_eq!(done.status.code(), Some(2), "{done:?}");
        assert!(err(&done).contains(expected), "{done:?}");
    }
    let nothing = jobfence(&["host", "--reserve", "1000T"]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(err(&nothing).contains("nothing is left for jobs"), "{nothing:?}");
}

/// What `jobfence explain` reads from a file and options: the keys that it names, or its error.
fn read(text: &[u8], more: &[&str]) -> Output {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("jobfence.conf");
    fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
    let command = command.args(["explain", "--cpus=1", "--mem=100", "--config"]).arg(&file).args(more);
    command.env_remove("SLURM_CONF").output().unwrap()
}

#[test]
fn a_file_from_another_system_is_read_or_its_mistake_is_named() {
    for text in [&b"MaxProcesses=77\r\nMode=enforce\r\n"[..], b"Mode=enforce\nMaxProcesses=77", b"MaxProcesses=77\r"] {
        let done = read(text, &[]);
        assert!(out(&done).contains("MaxProcesses=77 ("), "{}{}", out(&done), err(&done));
    }
    for (text, place, name) in [
        (&b"\xef\xbb\xbfMaxProcesses=77\n"[..], ":1:1: ", "a byte order mark"),
        (b"\xff\xfeM\0a\0x\0", ":1:1: ", "a byte order mark of UTF-16"),
        (b"MaxProcesses=77\rMode=enforce\r", ":1:14: ", "a carriage return"),
    ] {
        let done = read(text, &[]);
        assert_eq!(done.status.code(), Some(1));
        assert!(err(&done).contains(place) && err(&done).contains(name), "{}", err(&done));
        assert_eq!(err(&done).lines().count(), 1, "{}", err(&done));
    }
}

#[test]
fn a_mistake_in_an_option_names_it() {
    for (options, place) in [
        (&["-o", "Foo=bar"][..], "jobfence: -o Foo=bar, column 1: found \"Foo\""),
        (&["-o", "Mode=off", "-o", "MaxProcesses=5x"], "jobfence: -o MaxProcesses=5x, column 14: found \"5x\""),
        (&["-o", "MaxProcesses=5", "-o", "maxprocesses=6"], "; it is given in -o MaxProcesses=5 already"),
        (
            &["-o", "config=/x"],
            "jobfence: -o config=/x, column 1: found \"config\", expected config only once; it is given in --config",
        ),
        (&["-o", "A\u{1b}=1"], "jobfence: -o A\\u{1b}=1, column 1: "),
    ] {
        let done = read(b"", options);
        assert_eq!(done.status.code(), Some(1));
        assert!(err(&done).contains(place), "{}", err(&done));
    }
    let done = read(b"", &["-o", "MaxProcesses=78"]);
    assert!(out(&done).contains("MaxProcesses=78 (-o MaxProcesses=78)"), "{}", out(&done));
}

/// `run` and `explain` read sizes and rates as the file does (`config::units` tests the rest).
#[test]
fn sizes_mean_the_same_on_the_command_line() {
    for spelled in ["200M", "200MB", "200MiB", "204800K", "200"] {
        let done = jobfence(&["explain", "--cpus=1", "--mem", spelled]);
        assert!(out(&done).contains("200.0 MiB of memory"), "{spelled}: {}{}", out(&done), err(&done));
    }
    for spelled in ["8M", "8MB", "8mib", "8192KB", "8388608"] {
        let done = read(b"", &["--io-max", &format!("/ rbps={spelled}")]);
        // The file system may be on no disk here.
        assert!(err(&done).is_empty() && !out(&done).contains("expected"), "{}{}", out(&done), err(&done));
    }
}

#[test]
fn check_tries_it_out() {
    let site = Site::new("check");
    let check = site.command("check").output().unwrap();
    assert!(check.status.success(), "{}{}", out(&check), err(&check));
    let trial = "a step with limits (the job to 1 CPU, 30.0 MiB of memory";
    assert!(
        out(&check).contains(trial) && out(&check).contains("entered by a process, and removed"),
        "{}",
        out(&check)
    );
    assert_attach_time(&out(&check));
    let off = jobfence(&["check", "-o", "Mode=off"]);
    assert!(off.status.success());
    assert!(out(&off).contains("no job is fenced here"));
}

/// A Slurm's files, with a line in its plugstack.conf that loads the plugin.
struct Slurms {
    site: Site,
    files: tempfile::TempDir,
}

impl Slurms {
    fn new(test: &str) -> Self {
        let slurms = Self { site: Site::new(test), files: tempfile::tempdir().unwrap() };
        let placement =
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n";
        slurms.write("slurm.conf", placement);
        slurms
    }

    fn write(&self, file: &str, text: &str) -> PathBuf {
        let path = self.files.path().join(file);
        fs::write(&path, text).unwrap();
        path
    }

    /// What only the line gives `check`, as Slurm gives it to the plugin.
    fn given(&self, more: &str) -> String {
        format!("CgroupBase={} RunDir={} {more}", self.site.base.name, self.site.run.path().join("run").display())
    }

    /// Runs check with this line; returns the status and all output.
    fn check(&self, line: &str) -> (bool, String) {
        self.write("plugstack.conf", &format!("{line}\n"));
        let check = self.command(&[]);
        (check.status.success(), format!("{}{}", out(&check), err(&check)))
    }

    /// Runs check with these options and the line that is there.
    fn command(&self, options: &[&str]) -> Output {
        let mut check = Command::new(env!("CARGO_BIN_EXE_jobfence"));
        // With Cargo's value the dynamic loader would find the library anywhere.
        check.env_remove("LD_LIBRARY_PATH").env("SLURM_CONF", self.files.path().join("slurm.conf"));
        check.arg("check").args(options).output().unwrap()
    }

    /// Runs check with the right line and these arguments.
    fn check_with(&self, arguments: &str) -> (bool, String) {
        self.check(&format!("required {} {}", common::shared_object().display(), self.given(arguments)))
    }

    fn place(&self, file: &str) -> String {
        self.files.path().join(file).display().to_string()
    }
}

#[test]
fn check_reads_the_line_as_slurm_does() {
    let slurms = Slurms::new("line");
    let plugstack = slurms.place("plugstack.conf");
    let (passed, said) = slurms.check_with("MaxProcesses=77");
    assert!(passed && said.contains("77 processes"), "{said}");
    // A mistake is reported with its place.
    let (passed, said) = slurms.check_with("MaxProceses=77");
    assert!(!passed, "{said}");
    let mistake = format!("{plugstack}:1 argument 3, column 1: found \"MaxProceses\"");
    assert!(said.contains(&mistake) && said.contains("did you mean MaxProcesses?"), "{said}");
    // The command line takes precedence over the line.
    let tried = Command::new(env!("CARGO_BIN_EXE_jobfence"))
        .args(["check", "-o", "maxproceses=1", "-o", "MaxProcesses=5"])
        .env("SLURM_CONF", slurms.place("slurm.conf"))
        .output()
        .unwrap();
    assert!(err(&tried).contains("-o maxproceses=1, column 1: found \"maxproceses\""), "{}", err(&tried));
    let (passed, said) = slurms.check("# no line");
    assert!(!passed && said.contains(&format!("no line of {plugstack} loads libjobfence.so")), "{said}");
    let (passed, said) = slurms.check("requird /x/libjobfence.so");
    assert!(!passed && said.contains(&format!("Slurm ignores {plugstack}:1, which does not begin with")), "{said}");
    // jobfence.conf is where the line says, and so are its sections.
    let config = slurms.write("other.conf", "[Partition=gpu]\nMaxCPUsPerTask=0.001\n");
    let (passed, said) = slurms.check_with(&format!("config={}", config.display()));
    assert!(!passed && said.contains("NO job with [Partition=gpu] would be fenced here as configured"), "{said}");
    assert!(said.contains(&format!("by MaxCPUsPerTask=0.001 ({}:2 [Partition=gpu])", config.display())), "{said}");
}

#[test]
fn check_loads_the_plugin_as_slurm_does() {
    let slurms = Slurms::new("load");
    let so = common::shared_object();
    // Slurm searches its built-in directory for it, and then as the dynamic loader does.
    let (passed, said) = slurms.check(&format!("required libjobfence.so {}", slurms.given("")));
    assert!(
        !passed && said.contains("Slurm does not find it (") && said.contains("write the whole path of the file"),
        "{said}"
    );
    assert!(
        said.contains("verdict        NO job would be fenced here: Slurm cannot load the plugin, and starts no job"),
        "{said}"
    );
    let (passed, said) = slurms.check(&format!("optional libjobfence.so {}", slurms.given("")));
    assert!(!passed && said.contains("starts jobs without it (the line says optional)"), "{said}");
    let conf = fs::read_to_string(slurms.place("slurm.conf")).unwrap();
    let plugin_dir = format!("{conf}PluginDir=/nonexistent:{}\n", so.parent().unwrap().display());
    slurms.write("slurm.conf", &plugin_dir);
    let (passed, said) = slurms.check(&format!("required libjobfence.so {}", slurms.given("")));
    assert!(passed && said.contains(&format!(": is {}", so.display())), "{said}");
    for (text, reason) in [("no library\n", "cannot be loaded: "), ("", "cannot be loaded: ")] {
        let file = slurms.write("libjobfence.so", text);
        let (passed, said) = slurms.check(&format!("required {} {}", file.display(), slurms.given("")));
        assert!(!passed && said.contains(reason), "{said}");
    }
    // Users load it, too, with srun and sbatch.
    let (dir, copy) = (slurms.files.path(), slurms.files.path().join("libjobfence.so"));
    fs::copy(&so, &copy).unwrap();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for (of_dir, of_file, remedy) in [(0o755, 0o600, "chmod o+r "), (0o750, 0o644, "chmod o+x "), (0o755, 0o644, "")] {
        mode(dir, of_dir);
        mode(&copy, of_file);
        for kind in ["required", "optional"] {
            let (passed, said) = slurms.check(&format!("{kind} {} {}", copy.display(), slurms.given("")));
            assert_eq!(passed, kind == "optional" || remedy.is_empty(), "{said}");
            assert_eq!(
                said.contains("load the plugin as the job's user, and users may not read this"),
                !remedy.is_empty(),
                "{said}"
            );
            assert!(said.contains(remedy), "{said}");
        }
    }
    let (passed, said) =
        slurms.check(&format!("required {} {}\noptional libjobfence.so", so.display(), slurms.given("")));
    let again = format!("{}: names the plugin again", slurms.place("plugstack.conf:2"));
    assert!(passed && said.contains(&again), "{said}");
    // Libraries that are not this plugin.
    let theirs = slurms.files.path().join("jobfence.so");
    for library in ["/lib/x86_64-linux-gnu/libz.so.1", "/lib/aarch64-linux-gnu/libz.so.1"] {
        if fs::copy(library, &theirs).is_ok() {
            let (passed, said) = slurms.check(&format!("required {} {}", theirs.display(), slurms.given("")));
            assert!(!passed && said.contains("is no plugin of Slurm's"), "{said}");
        }
    }
}

#[test]
fn check_tries_every_limit() {
    let slurms = Slurms::new("limits");
    let least = "the kernel's least is 1000 us";
    let run = slurms.site.run.path();
    for (arguments, passes, said) in [
        ("CPUQuotaPeriod=1ms CPUQuotaPercent=50", false, least),
        ("CPUQuotaPeriod=1ms", true, ""),
        ("MaxCPUsPerTask=0.001", false, least),
        ("MaxCPUsPerTask=0.001 OnError=fail,cpu:warn", true, "OnError lets jobs run without it"),
        ("MaxCPUsPerTask=0.001 OnError=warn", false, "with OnError=warn jobs run without"),
        ("MaxCPUsPerTask=0.001 Mode=observe", true, "a job would be observed here"),
        ("MaxRAMPerTask=50M MaxProcessesPerTask=10 MaxCPUsPerTask=0.5", true, ""),
        ("IOMaxPerTask=/proc,rbps=1M", false, "/proc"),
    ] {
        let (passed, all) = slurms.check_with(arguments);
        assert_eq!(passed, passes, "{arguments}: {all}");
        assert!(all.contains(said), "{arguments}: {all}");
    }
    let key = |key: &str| format!("by {key} ({} argument 3)", slurms.place("plugstack.conf:1"));
    let (_, said) = slurms.check_with("MaxCPUsPerTask=0.001");
    assert!(said.contains(&key("MaxCPUsPerTask=0.001")), "{said}");
    // The records' directory is made as a step makes it, inside an existing one.
    let so = common::shared_object();
    let line =
        |run: &Path| format!("required {} CgroupBase={} RunDir={}", so.display(), slurms.site.base.name, run.display());
    let (passed, said) = slurms.check(&line(&run.join("no/such")));
    let place =
        format!("by RunDir={} ({} argument 2)", run.join("no/such").display(), slurms.place("plugstack.conf:1"));
    assert!(!passed && said.contains("make it, or set RunDir") && said.contains(&place), "{said}");
    for (mode, owner) in [(0o755, 0), (0o700, 65_534)] {
        let theirs = run.join("theirs");
        fs::create_dir(&theirs).unwrap();
        fs::set_permissions(&theirs, fs::Permissions::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(&theirs, Some(owner), None).unwrap();
        let (passed, said) = slurms.check(&line(&theirs));
        assert!(!passed && said.contains("RunDir must belong to root and have mode 0700"), "{said}");
        fs::remove_dir(&theirs).unwrap();
    }
    assert!(slurms.check(&line(&run.join("new"))).0 && run.join("new").is_dir());
}

/// Combinations that no job on this node can have are no fault; those that one can have are.
#[test]
fn check_looks_at_sections_as_they_come_together() {
    let slurms = Slurms::new("together");
    let check = |text: &str| {
        let config = slurms.write("sections.conf", text);
        slurms.check_with(&format!("config={}", config.display()))
    };
    for (text, jobs) in [
        (
            "[Partition=gpu]\nCPUQuotaPeriod=1ms\n[User=eve]\nCPUQuotaPercent=50\n",
            "job with [Partition=gpu] [User=eve]",
        ),
        ("[Partition=gpu]\nCPUQuotaPeriod=1ms\n[Partition=cpu]\nCPUQuotaPercent=50\n", ""),
        ("[Node=elsewhere[1-9]]\nMaxCPUsPerTask=0.001\n", "job"),
    ] {
        let (passed, said) = check(text);
        let passes = jobs.is_empty() || jobs == "job";
        // slurm.conf does not say yet which node this is.
        if jobs == "job" {
            assert!(!passed, "{said}");
            let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
            let conf = fs::read_to_string(slurms.place("slurm.conf")).unwrap();
            slurms.write("slurm.conf", &format!("{conf}NodeName={} CPUs=1\n", host.trim().split('.').next().unwrap()));
            assert!(check(text).0, "{}", check(text).1);
        } else {
            assert_eq!(passed, passes, "{said}");
            assert!(said.contains(&format!("NO {jobs} would be fenced")) || passes, "{said}");
        }
    }
}

#[test]
fn check_without_root_says_what_it_did_not_see() {
    let slurms = Slurms::new("user");
    let dir = slurms.files.path();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    for (from, to) in
        [(Path::new(env!("CARGO_BIN_EXE_jobfence")), "jobfence"), (&common::shared_object(), "libjobfence.so")]
    {
        fs::copy(from, dir.join(to)).unwrap();
    }
    // A valid RunDir that is root's.
    let run = dir.join("run");
    fs::create_dir(&run).unwrap();
    fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
    let check = |more: &str| {
        let line = format!("required {} RunDir={} {more}\n", dir.join("libjobfence.so").display(), run.display());
        slurms.write("plugstack.conf", &line);
        let mut check = Command::new(dir.join("jobfence"));
        let output =
            check.arg("check").env("SLURM_CONF", slurms.place("slurm.conf")).uid(65_534).gid(65_534).output().unwrap();
        (output.status.code(), format!("{}{}", out(&output), err(&output)))
    };
    let (status, said) = check("");
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("none without root: RunDir, the directories of jobs and their limits were not tried"),
        "{said}"
    );
    assert!(
        said.contains("only root can see whether a job would be fenced here")
            && said.contains("plugin         required"),
        "{said}"
    );
    for wrong in ["NO job", "such as /run/jobfence", "must belong to root"] {
        assert!(!said.contains(wrong), "{said}");
    }
    // What needs no root is reported all the same.
    let (status, said) = check("MaxCPUsPerTask=0.001");
    assert!(
        status == Some(1) && said.contains("verdict        NO job would be fenced here as configured: 0.001 CPUs"),
        "{said}"
    );
    fs::set_permissions(dir.join("plugstack.conf"), fs::Permissions::from_mode(0o600)).unwrap();
    let (status, said) = check("");
    assert!(status == Some(1) && said.contains("whether Slurm loads the plugin was not seen"), "{said}");
    assert!(!said.contains("no line of"), "{said}");
    let config = slurms.write("jobfence.conf", "Mode=enforce\n");
    fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(dir.join("plugstack.conf"), fs::Permissions::from_mode(0o644)).unwrap();
    let (status, said) = check(&format!("config={}", config.display()));
    assert!(status == Some(1) && said.contains("files that only root may read were not seen"), "{said}");
}

/// A row of the text of check: its name and its value. What stands below a row has the row's name.
fn rows_of_text(said: &str) -> Vec<(String, String)> {
    let mut rows: Vec<(String, String)> = Vec::new();
    for line in said.lines() {
        let (name, value) = line.split_at_checked(15).unwrap_or_else(|| panic!("no row: {line}"));
        let name = match (name.trim(), rows.last()) {
            ("", Some((above, _))) => above.clone(),
            (name, _) => name.to_owned(),
        };
        rows.push((name, value.to_owned()));
    }
    rows
}

#[test]
fn check_says_the_same_to_people_and_to_programs() {
    let slurms = Slurms::new("json");
    let config = slurms.write("jobfence.conf", "[User=nobody-of-this-name]\nMaxProcesses=9\n");
    let good = format!("config={} MetricsFile=/x.txt", config.display());
    let overlay = "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup\nJobAcctGatherType=jobacct_gather/cgroup\n";
    let mut kinds = std::collections::BTreeSet::new();
    let mut below = 0;
    // It makes the directories that the others find.
    slurms.check_with("");
    for (placement, arguments, word) in [
        ("TaskPlugin=task/none\n", good.as_str(), "ok"),
        (overlay, "", "ok"),
        ("", "MaxCPUsPerTask=0.001", "unfenced"),
        ("", "MaxCPUsPerTask=0.001 Mode=observe", "observe"),
        ("", "Mode=off", "off"),
    ] {
        slurms.write(
            "slurm.conf",
            &format!("ProctrackType=proctrack/linuxproc\nJobAcctGatherType=jobacct_gather/none\n{placement}"),
        );
        let (passed, text) = slurms.check_with(arguments);
        let done = slurms.command(&["--json"]);
        assert!(err(&done).is_empty(), "{}", err(&done));
        assert_eq!(done.status.success(), passed, "{arguments}");
        let json: serde_json::Value = serde_json::from_str(&out(&done)).unwrap();
        assert_eq!(json["schema"], "jobfence-check-1");
        assert_eq!(json["verdict"]["word"], word, "{json:#}");
        let text_of = |value: &serde_json::Value| value.as_str().unwrap_or_else(|| panic!("{json:#}")).to_owned();
        let rows = json["rows"].as_array().unwrap();
        let mut expected: Vec<_> = rows.iter().map(|row| (text_of(&row["name"]), text_of(&row["value"]))).collect();
        kinds.extend(rows.iter().map(|row| text_of(&row["kind"])));
        // For people, the verdict and its reasons stand first.
        let is_fault = |name: &str| rows.iter().any(|row| row["name"] == name && row["kind"] == "fault");
        expected.sort_by_key(|(name, _)| !is_fault(name));
        expected.insert(0, ("verdict".to_owned(), text_of(&json["verdict"]["text"])));
        // Times are others each time.
        let timeless = |rows: Vec<(String, String)>| -> Vec<(String, String)> {
            let is_time = |name: &str| ["attach", "favordynmods"].contains(&name);
            rows.into_iter()
                .map(|(name, value)| if is_time(&name) { (name, String::new()) } else { (name, value) })
                .collect()
        };
        below += text.lines().filter(|line| line.starts_with(' ')).count();
        assert_eq!(timeless(rows_of_text(&text)), timeless(expected), "{arguments}");
    }
    assert!(kinds.iter().eq(["fact", "fault", "remark"]) && below > 0, "{kinds:?}, {below} below others");
    // Mistakes have their places.
    let wrong = slurms.write("wrong.conf", "# fine\nConstrianRAMSpace=yes\n");
    slurms.check_with(&format!("config={} MaxProceses=1", wrong.display()));
    let done = slurms.command(&["--json", "-o", "Mode=on"]);
    assert!(!done.status.success() && err(&done).is_empty(), "{}", err(&done));
    let json: serde_json::Value = serde_json::from_str(&out(&done)).unwrap();
    let places: Vec<_> = json["mistakes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mistake| {
            assert!(mistake["text"].as_str().is_some_and(|text| text.contains(": found \"")), "{mistake}");
            (mistake["file"].as_str().map(str::to_owned), mistake["line"].as_u64(), mistake["column"].as_u64())
        })
        .collect();
    let plugstack = slurms.place("plugstack.conf");
    assert_eq!(
        places,
        [
            (Some(plugstack), Some(1), Some(1)),
            (None, None, Some(6)),
            (Some(wrong.display().to_string()), Some(2), Some(1))
        ]
    );
    assert_eq!(json["verdict"]["word"], "unfenced");
}

#[test]
fn a_health_check_fails_only_for_what_unfences_a_job() {
    let slurms = Slurms::new("health");
    let so = common::shared_object();
    let with = |arguments: &str| format!("required {} {}", so.display(), slurms.given(arguments));
    for (line, word, brief, health) in [
        (with(""), "ok", 0, 0),
        (with("Mode=observe"), "observe", 0, 0),
        (with("Mode=off"), "off", 0, 0),
        // Remarks.
        (with("MetricsFile=/x.txt StoreUsage=admincomment"), "ok", 0, 0),
        (with("MaxCPUsPerTask=0.001 OnError=fail,cpu:warn"), "ok", 0, 0),
        // A job would be refused, or run without a limit, or no job fenced at all.
        (with("MaxCPUsPerTask=0.001"), "unfenced", 1, 1),
        (with("MaxCPUsPerTask=0.001 OnError=warn"), "unfenced", 1, 1),
        (with("MaxProceses=1"), "unfenced", 1, 1),
        ("# no line".to_owned(), "unfenced", 1, 1),
        // Only the figures are missing.
        (with("MaxProceses=1 Mode=observe"), "unobserved", 1, 0),
        ("required /x/libjobfence.so Mode=observe".to_owned(), "unobserved", 1, 0),
    ] {
        slurms.check(&line);
        for (option, status) in [("--brief", brief), ("--health", health)] {
            // On a busy machine, too.
            let patience: &[&str] = if option == "--health" { &["--within", "300"] } else { &[] };
            let done = slurms.command(&[&[option], patience].concat());
            let said = out(&done);
            assert_eq!(done.status.code(), Some(status), "{option}, {line}: {said}{}", err(&done));
            assert!(said.starts_with(&format!("{word}: ")) && said.lines().count() == 1, "{option}, {line}: {said}");
            assert!(!said.contains(['\'', '"', '`', '$']) && err(&done).is_empty(), "{said}{}", err(&done));
        }
    }
    // Equal nodes say the same.
    for arguments in ["", "MaxCPUsPerTask=0.001"] {
        slurms.check(&with(arguments));
        assert_eq!(out(&slurms.command(&["--brief"])), out(&slurms.command(&["--health", "--within", "300"])));
    }
    slurms.check(&with(""));
    let healthy = out(&slurms.command(&["--brief"]));
    assert!(healthy.starts_with(&format!("ok: jobfence {}, ", jobfence::VERSION)), "{healthy}");
}

/// A file that is never opened stands for one of a dead server. Nothing of the check stays, and the reader of its output need not wait.
#[test]
fn a_health_check_ends_though_a_file_cannot_be_read() {
    let slurms = Slurms::new("hung");
    let fifo = slurms.files.path().join("libjobfence.so");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
    slurms.write("plugstack.conf", &format!("required {}\n", fifo.display()));
    let done = slurms.command(&["--health"]);
    assert_eq!(out(&done), "unknown: the check was not done after 3 seconds\n");
    assert_eq!((done.status.code(), err(&done).as_str()), (Some(0), ""));
    let variable = format!("SLURM_CONF={}", slurms.place("slurm.conf"));
    common::until("what waits has ended", || {
        let environments =
            fs::read_dir("/proc").unwrap().flatten().map(|process| fs::read(process.path().join("environ")));
        !environments.flatten().any(|all| String::from_utf8_lossy(&all).contains(&variable))
    });
}

/// What a health check says of the other schedulers, whose daemons and commands are stand-ins.
#[test]
fn a_health_check_asks_the_daemons_that_run_here_and_waits_for_none() {
    if !nix::unistd::geteuid().is_root() {
        return common::skip("only root's daemons count");
    }
    let temp = tempfile::tempdir().unwrap();
    let path = |name: &str| temp.path().join(name);
    for directory in ["sbin", "bin", "mom_priv", "mom_priv/hooks"] {
        fs::create_dir(path(directory)).unwrap();
    }
    let site = Site::new("health-daemons");
    let ours = env!("CARGO_BIN_EXE_jobfence");
    for (daemon, program, script, check, health, word) in [
        ("sge_execd", "qconf", format!("echo shepherd_cmd {ours}"), Some(0), 0, "ok: jobfence "),
        (
            "sge_execd",
            "qconf",
            "echo shepherd_cmd none".to_owned(),
            Some(1),
            1,
            "unfenced: NO job would be fenced here: shepherd_cmd",
        ),
        (
            "sge_execd",
            "qconf",
            "exit 1".to_owned(),
            Some(1),
            0,
            "unknown: NO job is known to be fenced here: Grid Engine",
        ),
        ("sge_execd", "qconf", "sleep 1000".to_owned(), None, 0, "unknown: "),
        ("condor_startd", "condor_config_val", format!("echo {ours}"), Some(0), 0, "ok: jobfence "),
        (
            "condor_startd",
            "condor_config_val",
            "echo /bin/sh".to_owned(),
            Some(1),
            1,
            "unfenced: NO job would be fenced here: STARTER",
        ),
        (
            "condor_startd",
            "condor_config_val",
            "exit 1".to_owned(),
            Some(1),
            0,
            "unknown: NO job is known to be fenced here: HTC",
        ),
        (
            "pbs_mom",
            "pbsnodes",
            String::new(),
            Some(0),
            1,
            "unfenced: NO job is fenced here by OpenPBS: MoM has no hook",
        ),
    ] {
        fs::copy("/bin/sleep", path("sbin").join(daemon)).unwrap();
        fs::write(path("bin").join(program), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path("bin").join(program), fs::Permissions::from_mode(0o755)).unwrap();
        // Of all that runs on this machine, the command sees only this daemon.
        let script = format!(
            "(cd mom_priv; exec ../sbin/{daemon} 1000) & \
             until [ \"$(cat /proc/$!/comm)\" = {daemon} ]; do kill -0 $! || exit; sleep 0.01; done; \"$0\" \"$@\""
        );
        let run = |options: &[&str]| {
            let mut unshare = Command::new("unshare");
            unshare.args(ALONE).args(["sh", "-c", &script, ours]).args(site.command("check").get_args()).args(options);
            let programs = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", path("bin").display());
            unshare.current_dir(temp.path()).env("PATH", programs).env_remove("SLURM_CONF").output()
        };
        // The whole check waits for longer.
        if let Some(status) = check {
            let Some(done) = run(&[]).ok().filter(|done| !err(done).contains("unshare failed")) else {
                return common::skip("no namespaces");
            };
            assert_eq!(done.status.code(), Some(status), "{daemon} {script}: {}{}", out(&done), err(&done));
        }
        // Of a qconf that does not answer, a busy machine knows nothing either way.
        let within = if check.is_none() { "9" } else { "300" };
        let done = run(&["--health", "--within", within]).unwrap();
        assert_eq!(done.status.code(), Some(health), "{daemon} {script}: {}{}", out(&done), err(&done));
        assert!(out(&done).starts_with(word), "{daemon}: {}", out(&done));
        if word.contains("MoM has no hook") {
            // Jobs that are not observed run as without jobfence.
            let done = run(&["--health", "--within", within, "-o", "Mode=observe"]).unwrap();
            assert!(done.status.success() && out(&done).starts_with("unobserved: "), "{}", out(&done));
        }
    }
}

/// A check leaves nothing behind: neither one that is ended midway nor, after another check and the janitor, one that was killed.
#[test]
fn check_leaves_nothing_behind() {
    let slurms = Slurms::new("behind");
    let overlay = "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup\nJobAcctGatherType=jobacct_gather/cgroup\n";
    slurms.write("slurm.conf", overlay);
    slurms.write("cgroup.conf", "ConstrainRAMSpace=yes\n");
    assert!(slurms.check_with("").0, "{}", slurms.check_with("").1);
    let left = |pid: u32| {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let tops = mounts.lines().filter(|line| line.contains(" - cgroup")).map(|line| line.split(' ').nth(4).unwrap());
        let mine = [format!("slurm_jobfence-check-{pid}."), format!("uid_{}", u32::MAX - 1 - pid)];
        let places = tops.flat_map(|top| [PathBuf::from(top), Path::new(top).join(&slurms.site.base.name)]);
        let names = places.flat_map(|place| fs::read_dir(place).into_iter().flatten().flatten());
        let is_mine = |name: &str| name.starts_with(&mine[0]) || name == mine[1];
        names
            .filter(|entry| is_mine(&entry.file_name().to_string_lossy()))
            .map(|entry| entry.path())
            .collect::<Vec<_>>()
    };
    let start = || {
        let mut check = Command::new(env!("CARGO_BIN_EXE_jobfence"));
        let check = check.arg("check").env("SLURM_CONF", slurms.place("slurm.conf"));
        check.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    // One whose process only another pid namespace knows stays.
    if let Some(freezer) = Some(Path::new("/sys/fs/cgroup/freezer")).filter(|place| place.join("cgroup.procs").exists())
    {
        let others = freezer.join(format!("slurm_jobfence-check-{}.1", u32::MAX));
        fs::create_dir(&others).unwrap();
        let (passed, said) = slurms.check_with("");
        fs::remove_dir(&others).unwrap_or_else(|error| panic!("{error}: {said}"));
        assert!(passed, "{said}");
    }
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGKILL] {
        for round in 0..20 {
            let mut check = start();
            let pid = check.id();
            // After it has made some, or at an arbitrary time.
            let deadline = Instant::now() + Duration::from_millis(200);
            while Instant::now() < deadline && (round % 2 == 1 || left(pid).is_empty()) {
                if round % 2 == 1 {
                    std::thread::sleep(Duration::from_millis(round * 2));
                    break;
                }
            }
            let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
            check.wait().unwrap();
            if signal == Signal::SIGKILL {
                let (passed, said) = slurms.check_with("");
                assert!(passed, "after {signal}: {said}");
                assert!(slurms.site.command("reap").output().unwrap().status.success());
            }
            assert_eq!(left(pid), Vec::<PathBuf>::new(), "after {signal}");
        }
    }
}

/// Expects `attach         a process was moved in 6.80 ms, and the next in 0.04 ms`, followed by which hierarchies would be faster.
fn assert_attach_time(said: &str) {
    let line = |word: &str| said.lines().find_map(|line| line.strip_prefix(word)).map(str::trim_start);
    let attach = line("attach ").unwrap_or_else(|| panic!("no time: {said}"));
    let times: Vec<f64> = attach.split(' ').filter_map(|word| word.parse().ok()).collect();
    assert!(times.len() == 2 && times.iter().all(|time| (0.001..1000.0).contains(time)), "{attach}");
    let favordynmods = line("favordynmods ").unwrap_or_else(|| panic!("nothing about favordynmods: {said}"));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_on = |mount: &str| mounts.lines().any(|l| l.contains(&format!(" {mount} ")) && l.contains("favordynmods"));
    let used = said.lines().filter_map(|line| line.strip_prefix("hierarchy ")?.trim_start().strip_suffix(": used"));
    for mount in used.filter_map(|hierarchy| hierarchy.split(' ').nth(1)) {
        let (on, off) = favordynmods.split_once("is off in").unwrap_or(match favordynmods.split_once(", off in") {
            Some(both) => both,
            None => (favordynmods, ""),
        });
        assert!(if is_on(mount) { on.contains(mount) } else { off.contains(mount) }, "{mount}: {favordynmods}");
    }
}

#[test]
fn the_example_file_is_the_defaults() {
    let example = fs::read_to_string("plugstack/jobfence.conf").unwrap();
    let keys = out(&jobfence(&["check", "--keys", "-o", "Mode=off"]));
    let commented: Vec<&str> =
        example.lines().filter_map(|line| line.strip_prefix('#')).filter(|line| !line.starts_with(' ')).collect();
    // The defaults of the other keys depend on the host.
    for key in KEYS.iter().filter(|key| key.name != "Mode" && key.default_value().is_some()) {
        let line = keys.lines().find(|line| line.starts_with(&format!("{}=", key.name))).unwrap();
        let shown = commented.iter().find(|line| line.starts_with(&format!("{}=", key.name)));
        let shown = shown.unwrap_or_else(|| panic!("{} is not in the example file", key.name));
        let same = |text: &str| jobfence::config::parse("test", format!("{text}\n").as_bytes()).unwrap();
        assert_eq!(same(shown), same(line), "{}", key.name);
    }
}

#[test]
fn run_ends_as_the_command_ends() {
    let site = Site::new("ends");
    assert_eq!(site.run(&["--", "sh", "-c", "exit 3"]).status.code(), Some(3));
    assert_eq!(site.run(&["--", "sh", "-c", "kill -TERM $$"]).status.signal(), Some(libc::SIGTERM));
    let missing = site.run(&["--", "/nonexistent"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(err(&missing).contains("cannot run /nonexistent: No such file or directory"), "{}", err(&missing));
    assert_eq!(out(&site.run(&["--", "echo", "fine"])), "fine\n");
}

#[test]
fn run_limits_cpu_time() {
    let site = Site::new("cpu");
    let spin = "import time, os\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass\n\
                t = os.times()\nprint((t.user + t.system) / 2)";
    let output = site.run(&["--cpus", "0.25", "--", "/usr/bin/python3", "-S", "-c", spin]);
    let cpus: f64 = out(&output).trim().parse().unwrap();
    // More only by what a short run keeps of its first period; less if the machine is busy.
    assert!((0.05..0.32).contains(&cpus), "{cpus}");
}

#[test]
fn run_explains_a_kill_for_want_of_memory() {
    let site = Site::new("memory");
    let output = site.run(&["--mem", "40M", "--", "/usr/bin/python3", "-S", "-c", "b = bytearray(80 << 20)"]);
    assert_eq!(output.status.signal(), Some(libc::SIGKILL));
    let said = err(&output);
    assert!(said.contains("(python3) was killed") && said.contains("memory limit of 40.0 MiB"), "{said}");
}

/// Makes a cgroup below its own, in which a child is killed.
const NESTED: &str = r"
import os
mounts = [line.split() for line in open('/proc/self/mountinfo')]
places = dict(line.rstrip().split(':', 2)[1:] for line in open('/proc/self/cgroup'))
v1 = next((names for names in places if 'memory' in names.split(',')), None)
if v1:
    mount = next(m for m in mounts if m[-3] == 'cgroup' and 'memory' in m[-1].split(','))
else:
    mount = next(m for m in mounts if m[-3] == 'cgroup2')
nested = mount[4] + '/' + os.path.relpath(places[v1 or ''], mount[3]) + '/nested'
os.mkdir(nested)
if os.fork() == 0:
    open(nested + '/cgroup.procs', 'w').write('0')
    bytearray(80 << 20)
print(os.WTERMSIG(os.wait()[1]))
";

#[test]
fn run_names_a_process_that_was_killed_in_a_cgroup_of_its_own() {
    let site = Site::new("nested");
    let output = site.run(&["--mem", "40M", "--", "/usr/bin/python3", "-S", "-c", NESTED]);
    let said = err(&output);
    assert_eq!((out(&output).as_str(), output.status.code()), ("9\n", Some(0)), "{said}");
    assert!(said.contains("(python3) was killed") && said.contains("memory limit of 40.0 MiB"), "{said}");
}

#[test]
fn run_ends_with_a_card_where_that_is_wanted() {
    let site = Site::new("card");
    // Not the shell's own fork: the shell retries a refused fork unless a child ends meanwhile.
    let forks = "exec /usr/bin/python3 -S -c '
import os
r, w = os.pipe()
for _ in range(6):
    try:
        child = os.fork()
    except OSError:
        continue
    if child == 0:
        os.close(w)
        os.read(r, 1)
        os._exit(0)
os.close(w)
os._exit(3)'";
    let run = |when: &str, locale: &str, command: &str| {
        let args = ["--cpus", "1", "--mem", "100M", "--processes", "5", when, "--", "bash", "-c", command];
        let output = site.command("run").args(args).env("LC_ALL", locale).output().unwrap();
        let said = err(&output);
        // The reason comes before it.
        let begin = said.find("jobfence: job run-").filter(|_| !said.contains("were refused"));
        said[begin.or_else(|| said.rfind("jobfence: job run-")).unwrap_or(said.len())..].to_owned()
    };
    let card = run("--usage-card=failed", "C", forks);
    assert!(card.contains(" failed with exit status 3 after "), "{card}");
    assert!(
        card.contains("\n  processes ####################  100 %  peak 5 of 5")
            || card.contains("the peak of processes")
    );
    assert!(card.contains("could not start because of the limit of 5 at once.\n") && card.is_ascii(), "{card}");
    assert!(run("--usage-card=always", "C.UTF-8", forks).contains('█'));
    let line = run("--usage-card=always", "C", "true");
    assert!(line.contains(": ok, 0.") && line.lines().count() == 1, "{line}");
    assert_eq!(run("--usage-card=failed", "C", "true"), "");
    assert_eq!(run("--usage-card=never", "C", "exit 3"), "");
    let wrong = site.run(&["--usage-card=yes", "--", "true"]);
    assert!(err(&wrong).contains("expected never, failed, wasteful or always"), "{}", err(&wrong));
}

/// Prints the quota of the step and of the job, as the kernel has them.
const QUOTAS: &str = r"
import os
mounts = [line.split() for line in open('/proc/self/mountinfo')]
places = dict(line.rstrip().split(':', 2)[1:] for line in open('/proc/self/cgroup'))
v1 = next((names for names in places if 'cpu' in names.split(',')), None)
kind, file = ('cgroup', 'cpu.cfs_quota_us') if v1 else ('cgroup2', 'cpu.max')
mount = next(m for m in mounts if m[-3] == kind and (not v1 or 'cpu' in m[-1].split(',')))
step = mount[4] + '/' + os.path.relpath(places[v1 or ''], mount[3])
print(*[open(f'{place}/{file}').read().split()[0] for place in (step, os.path.dirname(step))], os.path.realpath(step))
";

#[test]
fn run_shows_a_person_the_fence_and_what_was_used() {
    let site = Site::new("terminal");
    let on_terminal = |args: &[&str]| {
        let command = site.command("run");
        let words =
            std::iter::once(command.get_program()).chain(command.get_args()).chain(args.iter().map(AsRef::as_ref));
        let quoted: Vec<String> =
            words.map(|word| format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"))).collect();
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &quoted.join(" "), "/dev/null"]).stdin(Stdio::null());
        let output = script.env("LC_ALL", "C.UTF-8").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        out(&output).replace('\r', "")
    };
    let limits = ["--cpus=0.5", "--mem=200M", "--processes=9", "--", "/usr/bin/python3", "-S", "-c", QUOTAS];
    let said = on_terminal(&limits);
    let lines: Vec<&str> = said.lines().collect();
    let title = lines[0].strip_prefix("jobfence: the kernel limits job run-").unwrap_or_else(|| panic!("{said}"));
    assert!(title.ends_with(" to 0.5 CPUs, 200.0 MiB of memory, 9 processes"), "{said}");
    let places = lines[1..].iter().map_while(|line| line.strip_prefix("  in ")).count();
    let quotas: Vec<&str> = lines[1 + places].split(' ').collect();
    // Throttled in one place alone, where all of it is counted.
    assert!(quotas[0] == "50000" && ["-1", "max"].contains(&quotas[1]), "{said}");
    let is_in = |line: &&str| line.strip_prefix("  in ").is_some_and(|place| Path::new(place) == Path::new(quotas[2]));
    assert!(lines[1..=places].iter().any(is_in), "{said}");
    let card = &lines[2 + places..];
    assert!(card[0].starts_with("jobfence: job run-") && card[0].contains(" completed after "), "{said}");
    assert!(card[1].starts_with("  CPU       █") && card[1].contains(" of 0.5 CPUs on average"), "{said}");
    assert!(card[2].starts_with("  memory    █") && card[2].ends_with(" of 200.0 MiB"), "{said}");

    assert!(on_terminal(&["--", "true"]).contains(" has no limits\n  in /"));
    let only_the_fence = on_terminal(&["--usage-card=never", "--", "true"]);
    assert!(only_the_fence.lines().skip(1).all(|line| line.starts_with("  in /")), "{only_the_fence}");
    assert_eq!(on_terminal(&["--quiet", "--", "echo", "x"]), "x\n");
    // For a program that reads stderr, nothing is new.
    assert_eq!(err(&site.run(&["--cpus=0.5", "--", "true"])), "");
    assert!(err(&site.run(&["-v", "--cpus=0.5", "--", "true"])).starts_with("jobfence: the kernel limits job run-"));
}

#[test]
fn run_as_another_user_takes_nothing_of_roots_along() {
    let site = Site::new("user");
    let secret = tempfile::NamedTempFile::new().unwrap();
    let look =
        "id -un; env | grep -c SECRET; ls /proc/self/fd | wc -l; ps -o sid= -p $$ | tr -d ' '; echo $$; echo $HOME";
    let output = site
        .command("run")
        .args(["--user", "nobody", "--", "sh", "-c", look])
        .env("SECRET", "yes")
        .env("LANG", "C")
        .stdin(fs::File::open(secret.path()).unwrap())
        .output()
        .unwrap();
    let said = out(&output);
    let lines: Vec<&str> = said.lines().collect();
    // 0, 1, 2 and the directory that ls itself has open.
    assert_eq!(lines.get(..3), Some(&["nobody", "0", "4"][..]), "{said}{}", err(&output));
    assert_eq!(lines.get(3), lines.get(4), "a session of its own: {said}");
    assert_eq!(lines.get(5), Some(&"/nonexistent"));
    assert!(err(&site.run(&["--user", "no-such-user", "--", "true"])).contains("unknown user"));
}

#[test]
fn run_kills_what_the_command_leaves_behind() {
    let site = Site::new("stragglers");
    let output = site.run(&["--", "sh", "-c", "setsid sleep 987 >/dev/null 2>&1 & echo $!"]);
    let pid = out(&output).trim().to_owned();
    // A zombie that init has not reaped yet is dead.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "process {pid} lives");
}

#[test]
fn run_passes_signals_on() {
    let site = Site::new("signals");
    let script = "trap 'echo usr1; exit 5' USR1; echo ready; while :; do sleep 0.05; done";
    let mut child = site.command("run").args(["--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut ready = [0u8; 6];
    std::io::Read::read_exact(&mut stdout, &mut ready).unwrap();
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGUSR1).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5));
    assert_eq!(std::io::read_to_string(stdout).unwrap(), "usr1\n");
}

#[test]
fn a_signal_for_real_time_is_passed_on_and_ends_as_any_other() {
    let site = Site::new("real-time");
    let signal = libc::SIGRTMIN() + 3;
    // It ends by itself, too, if nobody passes the signal on.
    let script = format!("trap 'exit 5' {signal}; echo ready; for try in $(seq 600); do sleep 0.05; done");
    let mut command = site.command("run");
    let mut child = command.args(["--", "sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0u8; 6]).unwrap();
    // SAFETY: two numbers.
    assert_eq!(unsafe { libc::kill(child.id().cast_signed(), signal) }, 0);
    assert_eq!(child.wait().unwrap().code(), Some(5));
    let output = site.run(&["--", "sh", "-c", &format!("kill -{signal} $$")]);
    assert_eq!(output.status.signal(), Some(signal), "{}", err(&output));
}

#[test]
fn run_stops_and_continues_with_the_command() {
    let site = Site::new("stop");
    let script = "echo ready; kill -STOP $$; echo on";
    let mut child = site.command("run").args(["--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_raw(child.id().cast_signed());
    let deadline = common::soon();
    let state = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    while !state().contains(") T ") {
        assert!(Instant::now() < deadline, "not stopped: {}", state());
        std::thread::sleep(Duration::from_millis(5));
    }
    kill(pid, Signal::SIGCONT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(std::io::read_to_string(child.stdout.take().unwrap()).unwrap(), "ready\non\n");
}

#[test]
fn run_works_where_sigchld_was_ignored() {
    let site = Site::new("sigchld");
    let jobfence = site.command("run");
    let mut words: Vec<String> = vec![jobfence.get_program().to_string_lossy().into_owned()];
    words.extend(jobfence.get_args().map(|word| word.to_string_lossy().into_owned()));
    let program =
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])";
    let status = Command::new("timeout")
        .args(["300", "/usr/bin/python3", "-S", "-c", program])
        .args(words)
        .args(["--", "sh", "-c", "exit 4"])
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(4));
}

#[test]
fn reap_kills_nobody_whose_owner_lives_elsewhere() {
    let site = Site::new("namespace");
    let mut sleeper = site.command("run").args(["--", "sleep", "60"]).spawn().unwrap();
    let record =
        || fs::read_dir(site.run.path().join("run")).into_iter().flatten().flatten().find(|e| e.path().is_file());
    let deadline = common::soon();
    while record().is_none() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    // A janitor in another pid namespace does not see the owner, and must not take it for dead.
    let reap = site.command("reap");
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc"])
        .arg(reap.get_program())
        .args(reap.get_args())
        .output()
        .unwrap();
    assert!(out(&output).contains("0 removed, 1 alive"), "{}{}", out(&output), err(&output));
    assert!(sleeper.try_wait().unwrap().is_none(), "the step was ended");
    kill(Pid::from_raw(sleeper.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(sleeper.wait().unwrap().signal(), Some(libc::SIGTERM));
}

/// A node is upgraded, or downgraded, while steps are alive.
#[test]
fn cgroups_that_a_container_may_not_write_are_named() {
    let temp = tempfile::tempdir().unwrap();
    let top = temp.path().display();
    let script = format!(
        "mount --rbind /sys/fs/cgroup {top} && awk '$5 ~ \"^{top}/?\" {{print $5}}' /proc/self/mountinfo | while read m; do \
         mount -o remount,bind,ro $m; done && exec \"$0\" run -o CgroupMountpoint={top} -o CgroupBase=jobfence-cli-ro -- true"
    );
    let mut unshare = Command::new("unshare");
    let done = unshare.args(["--mount", "sh", "-ec", &script, env!("CARGO_BIN_EXE_jobfence")]).output().unwrap();
    if err(&done).contains("unshare failed") {
        return common::skip("not root, or no mount namespace can be had here");
    }
    assert!(
        !done.status.success() && err(&done).contains("(EROFS); the cgroup file system is mounted read-only here"),
        "{done:?}"
    );
}

#[test]
fn a_step_of_another_release_is_left_to_it() {
    let site = Site::new("release");
    let mut owner = site.command("run").args(["--", "sleep", "61"]).spawn().unwrap();
    let run_dir = site.run.path().join("run");
    let deadline = common::soon();
    let sleeper = loop {
        let child = fs::read_to_string(format!("/proc/{0}/task/{0}/children", owner.id())).unwrap();
        let cgroup = fs::read_to_string(format!("/proc/{}/cgroup", child.trim())).unwrap_or_default();
        if cgroup.contains(&site.base.name) {
            break child.trim().to_owned();
        }
        assert!(Instant::now() < deadline, "{cgroup}");
        std::thread::sleep(Duration::from_millis(5));
    };
    let record = fs::read_dir(&run_dir).unwrap().flatten().map(|e| e.path()).find(|path| path.is_file()).unwrap();
    let ours = fs::read_to_string(&record).unwrap();
    let theirs = ours.replace("jobfence-record 1\n", "jobfence-record 3\n").replace("\nend\n", "\nwhat=ever\nend\n");
    assert_ne!(ours, theirs);
    fs::write(&record, &theirs).unwrap();

    let reap = site.command("reap").output().unwrap();
    assert!(reap.status.success() && out(&reap).contains("0 removed, 1 alive, 0 could not"), "{reap:?}");
    assert!(site.command("check").output().unwrap().status.success());
    assert_eq!(err(&site.run(&["--", "true"])), "");
    assert!(owner.try_wait().unwrap().is_none(), "the step was ended");

    owner.kill().unwrap();
    owner.wait().unwrap();
    let reap = site.command("reap").output().unwrap();
    assert_eq!(reap.status.code(), Some(1));
    let said = err(&reap);
    assert!(said.contains("another release") && said.contains("\"jobfence-record 3\""), "{said}");
    assert!(said.contains(record.to_str().unwrap()) && said.contains("run its 'jobfence reap'"), "{said}");
    assert_eq!(fs::read_to_string(&record).unwrap(), theirs);
    let is_alive = || {
        let stat = fs::read_to_string(format!("/proc/{sleeper}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    };
    assert!(is_alive(), "its process was killed");
    assert_eq!(err(&site.run(&["--", "true"])), "");
    assert!(site.command("check").output().unwrap().status.success());

    // That release comes back.
    fs::write(&record, &ours).unwrap();
    let reap = site.command("reap").output().unwrap();
    assert!(reap.status.success() && out(&reap).contains("1 removed"), "{reap:?}");
    assert!(!is_alive() && !record.exists());
}
