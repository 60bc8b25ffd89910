// SPDX-License-Identifier: GPL-2.0-or-later
//! The `jobfence` command as its users meet it: words, exit statuses, signals, terminal.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use jobfence::config::KEYS;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

mod common;

/// The command, with directories of its own when it makes any.
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

/// In a mount namespace of its own, where nothing but these lines of a shell has been in `/etc/slurm`.
fn with_etc_slurm(made: &str, args: &str) -> Option<Output> {
    let script = format!("mount -t tmpfs none /etc/slurm && cd /etc/slurm && {{ {made}; }} && exec \"$0\" {args}");
    let mut unshare = Command::new("unshare");
    let done = unshare.args(["--mount", "sh", "-ec", &script, env!("CARGO_BIN_EXE_jobfence")]).output();
    match done {
        Ok(done) if !err(&done).contains("unshare failed") => Some(done),
        _ => None,
    }
}

#[test]
fn the_name_of_a_configuration_that_leads_nowhere_is_a_mistake() {
    if !nix::unistd::geteuid().is_root() || !fs::exists("/etc/slurm").unwrap() {
        return common::skip("needs root and a directory /etc/slurm");
    }
    let explain = "explain --cpus 1";
    let Some(none) = with_etc_slurm("true", explain) else {
        return common::skip("no mount namespace can be made here");
    };
    assert!(none.status.success() && out(&none).contains("defaults"), "{none:?}");
    for (made, found) in [
        (
            "ln -s /shared/jobfence.conf jobfence.conf",
            "the symbolic link to /shared/jobfence.conf, which does not exist",
        ),
        ("echo MaxProcesses=9 > moved; ln -s gone jobfence.conf", "the symbolic link to gone, which does not exist"),
    ] {
        for args in [explain, "check", "reap"] {
            let done = with_etc_slurm(made, args).unwrap();
            assert!(!done.status.success(), "{args}: {done:?}");
            let expected = format!("/etc/slurm/jobfence.conf: found {found}, expected a file that can be read");
            assert!(err(&done).contains(&expected), "{args}: {done:?}");
        }
    }
    // What a link leads to is read.
    let linked = with_etc_slurm("echo MaxProcesses=9 > there; ln -s there jobfence.conf", explain).unwrap();
    assert!(linked.status.success() && out(&linked).contains("MaxProcesses=9"), "{linked:?}");
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
    // Where what it says cannot be written, as in a log on a full disk; or nobody reads it any more.
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (reader, unread) = nix::unistd::pipe().unwrap();
    drop(reader);
    for stderr in [Stdio::from(full), Stdio::from(unread)] {
        let unheard = site.command("prolog").env_clear().stderr(stderr).status().unwrap();
        assert_eq!(unheard.code(), Some(0));
    }
    let said = [
        ("SLURM_JOB_ID", "7"),
        ("SLURM_JOB_UID", "1001"),
        ("SLURM_JOB_PARTITION", "gpu"),
        ("SLURM_JOB_CPUS_PER_NODE", "2(x3)"),
        ("SLURM_JOB_GPUS", "1,3"),
        // What users can add has another name.
        ("SPANK_SLURM_JOB_QOS", "high"),
    ];
    assert_eq!(called("epilog", &said, &[]), (Some(0), String::new()));
    assert!(!record.exists() && !site.run.path().join("run/jobs").exists());
    for partition in ["debug", "gpu"] {
        let said = said.map(|(key, value)| (key, if key == "SLURM_JOB_PARTITION" { partition } else { value }));
        assert_eq!(called("prolog", &said, &[]), (Some(0), String::new()));
    }
    let text = fs::read_to_string(&record).unwrap();
    assert!(text.ends_with("uid=1001\npartition==gpu\nqos=?\naccount==\ncpus=2\ngpus=1,3\nend\n"), "{text}");
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
    // Who has written something else into slurm.conf hears of it.
    assert_eq!(called("prolog", &said, &["--job", "7"]).0, Some(2));
}

/// The lines of the manual's page that ask squeue for the QOS, as an administrator would copy them.
fn recipe_for_the_qos() -> String {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/man/jobfence.8")).unwrap();
    let block =
        page.split(".EX\n").filter_map(|rest| rest.split(".EE\n").next()).find(|block| block.contains("squeue"));
    block.expect("the recipe").replace("\\-", "-")
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
    // The recipe's command, with the directories of this test.
    let ours = site.command("prolog");
    let words: Vec<_> = ours.get_args().map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    write("jobfence", &format!("#!/bin/sh\nexec '{}' {}\n", env!("CARGO_BIN_EXE_jobfence"), words.join(" ")));
    let recipe = recipe_for_the_qos();
    let installed = "/usr/local/sbin/jobfence prolog";
    assert!(recipe.contains(installed), "{recipe}");
    let recipe = recipe.replace(installed, bin.join("jobfence").to_str().unwrap());
    for (squeue, qos) in [
        ("echo restricted", "qos==restricted\n"),
        ("exit 1", "qos=?\n"),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", "qos=?\n"),
        ("echo half of; exit 1", "qos=?\n"),
        ("echo", "qos=?\n"),
        ("echo '(null)'", "qos=?\n"),
        ("echo one; echo another", "qos=?\n"),
    ] {
        write("squeue", &format!("#!/bin/sh\n{squeue}\n"));
        let done = Command::new("sh")
            .args(["-e", "-c", &recipe])
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
            .envs([("SLURM_JOB_ID", "7"), ("SLURM_JOB_UID", "1001"), ("SLURM_JOB_PARTITION", "gpu")])
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
    // What is shown says the same again.
    let long = check(&["--keys"]);
    let (_, sections) = long.split_once("[Partition").unwrap();
    let sections = sections.split_once("verdict").unwrap().0.to_owned();
    assert_eq!(format!("MaxProcesses=1000\n[Partition{sections}"), text);
}

#[test]
fn help_and_mistakes() {
    let help = jobfence(&["--help"]);
    assert!(help.status.success());
    for subcommand in ["check", "explain", "run", "reap", "prolog", "epilog", "adopt", "hold"] {
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
        assert_eq!(wrong.status.code(), Some(2), "{option}={value}: {}", out(&wrong));
        assert!(err(&wrong).contains(expected), "{}", err(&wrong));
    }
    // Of a user whom nobody knows here the number will do.
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

/// What `jobfence explain` reads of a file and of options: the keys that it names, or its mistake.
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

/// `run` and `explain` read sizes and rates as the file does (`config::units` has the rest).
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
    assert!(out(&check).contains("a step with 1 CPU and 64 MiB was made"), "{}", out(&check));
    assert_attach_time(&out(&check));
    let off = jobfence(&["check", "-o", "Mode=off"]);
    assert!(off.status.success());
    assert!(out(&off).contains("no job is fenced here"));
}

/// `attach         a process was moved in 6.80 ms, and the next in 0.04 ms`, and then which hierarchies would be faster.
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
    // The defaults of the others depend on the host.
    for key in KEYS.iter().filter(|key| key.name != "Mode" && key.default_value().is_some()) {
        let line = keys.lines().find(|line| line.starts_with(&format!("{}=", key.name))).unwrap();
        let shown = commented.iter().find(|line| line.starts_with(&format!("{}=", key.name)));
        let shown = shown.unwrap_or_else(|| panic!("{} is not in the example file", key.name));
        let same = |text: &str| jobfence::config::parse("test", format!("{text}\n").as_bytes()).unwrap();
        assert_eq!(same(shown), same(line), "{}", key.name);
    }
}

#[test]
fn every_key_is_in_the_man_page() {
    let page = fs::read_to_string("docs/man/jobfence.conf.5").unwrap();
    for key in KEYS {
        assert!(page.lines().any(|line| line.starts_with(&format!(".B {}", key.name))), "{} is missing", key.name);
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
    // Above it only by what a short run keeps of its first period; below it as far as the machine is busy.
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
    // A zombie that init has not looked after yet is dead.
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
fn run_stops_and_continues_with_the_command() {
    let site = Site::new("stop");
    let script = "echo ready; kill -STOP $$; echo on";
    let mut child = site.command("run").args(["--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_raw(child.id().cast_signed());
    let deadline = Instant::now() + Duration::from_secs(10);
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
        .args(["10", "/usr/bin/python3", "-S", "-c", program])
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
    let deadline = Instant::now() + Duration::from_secs(10);
    while record().is_none() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    // A janitor in a pid namespace of its own does not see the owner, and must not take that for dead.
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

/// A node is upgraded, or goes back to an older release, while steps live.
#[test]
fn a_step_of_another_release_is_left_to_it() {
    let site = Site::new("release");
    let mut owner = site.command("run").args(["--", "sleep", "61"]).spawn().unwrap();
    let run_dir = site.run.path().join("run");
    let deadline = Instant::now() + Duration::from_secs(10);
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
    let theirs = ours.replace("jobfence-record 1\n", "jobfence-record 2\n").replace("\nend\n", "\nwhat=ever\nend\n");
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
    assert!(said.contains("another release") && said.contains("\"jobfence-record 2\""), "{said}");
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
