// SPDX-License-Identifier: GPL-2.0-or-later
//! `SignalAt`: a program that grows reads a sentence and gets its signal before the kernel kills it, and one that only fills the page
//! cache is left alone.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

mod common;

/// Grows to three fifths of 200 MiB, waits for the signal and for a line as long as it takes, and grows on until it is killed.
const GROWS: &str = "
import signal, time
kept, saved = [], []
signal.signal(signal.SIGUSR1, lambda *_: saved.append(print('saved', flush=True)))
print('ready', flush=True)
input()
while len(kept) < 12:
    kept.append(b'x' * (10 << 20))
while not saved:
    time.sleep(0.01)
input()
while True:
    kept.append(b'x' * (10 << 20))
";

/// Has three quarters of 200 MiB in the page cache, and almost nothing else.
const READS: &str = "
import os, sys, time
print('ready', flush=True)
input()
with open(sys.argv[1], 'wb') as file:
    for _ in range(150):
        file.write(bytes(1 << 20))
    os.fsync(file.fileno())
for _ in range(3):
    # What is read again is active, and the kernel takes it back all the same.
    with open(sys.argv[1], 'rb') as file:
        while file.read(1 << 20):
            pass
print('cached', flush=True)
time.sleep(1000)
";

/// Has sixteen processes, and waits until its input ends.
const FORKS: &str = "
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'heard\\n'))
print('ready', flush=True)
input()
for _ in range(15):
    if os.fork() == 0:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        os.read(0, 1)
        os._exit(0)
sys.stdin.read()
";

/// Wants a whole CPU.
const SPINS: &str = "
import os, signal
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'heard\\n'))
print('ready', flush=True)
input()
while True:
    pass
";

struct Site {
    temp: tempfile::TempDir,
    base: common::Base,
    user: u32,
    hold: Option<Child>,
    children: Vec<Child>,
}

impl Site {
    fn new(test: &str) -> Option<Self> {
        let base = common::Base::if_root("signal_at", test)?;
        let temp = tempfile::tempdir().unwrap();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Some(Self { temp, base, user: common::uids(), hold: None, children: Vec::new() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
        command.args(args).arg("-o").arg(format!("CgroupBase={}", self.base.name));
        command.arg("-o").arg(format!("RunDir={}", self.path("run").display())).stdin(Stdio::null());
        command
    }

    fn out(&self, args: &[&str]) -> String {
        let done = self.command(args).output().unwrap();
        assert!(done.status.success(), "{args:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// Its janitor does not run again, so that it hears of a step by the step's own word alone.
    fn hold(&mut self) {
        let mut hold = self.command(&["hold", "-o", "ReapInterval=86400"]);
        self.hold = Some(hold.stderr(fs::File::create(self.path("hold")).unwrap()).spawn().unwrap());
        common::until("hold", || self.path("run/hold.lock/early_move").exists());
    }

    /// A file that the user may write.
    fn file(&self, name: &str) -> fs::File {
        let file = fs::File::create(self.path(name)).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o666)).unwrap();
        file
    }

    /// Starts a program in a fence, with the next file for its errors.
    fn run(&mut self, job: &str, program: &str, signal_at: &str) -> usize {
        self.run_with(&[], job, program, signal_at)
    }

    /// The same with more options.
    fn run_with(&mut self, more: &[&str], job: &str, program: &str, signal_at: &str) -> usize {
        let setting = format!("SignalAt={signal_at}");
        self.run_asking(&[&["-o", &setting], more].concat(), job, program)
    }

    /// The same without the key.
    fn run_asking(&mut self, options: &[&str], job: &str, program: &str) -> usize {
        let user = self.user.to_string();
        let open = ["open", "--job", job, "--user", &user, "--mem", "200M", "--cpus", "1"];
        self.out(&[&open, options].concat());
        let errors = self.file(&format!("errors.{job}"));
        self.file("cached");
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", program]).arg(self.path("cached")).uid(self.user).gid(self.user).current_dir("/");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        self.out(&["attach", "--job", job, &child.id().to_string()]);
        self.children.push(child);
        self.go_on(self.children.len() - 1);
        self.children.len() - 1
    }

    /// Starts a program by `jobfence run`, whose job has its own number in its name. It says what it says to a file, and so does the program.
    fn run_fenced(&mut self, options: &[&str], program: &str) -> (usize, String) {
        self.file("errors.run");
        // Both write at its end, whoever was first.
        let errors = fs::File::options().append(true).open(self.path("errors.run")).unwrap();
        let mut command = self.command(&[&["run", "--user", "nobody", "--mem", "200M"], options].concat());
        command.args(["--", "/usr/bin/python3", "-c", program]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        let job = format!("run-{}", child.id());
        self.children.push(child);
        self.go_on(self.children.len() - 1);
        (self.children.len() - 1, job)
    }

    fn go_on(&mut self, program: usize) {
        self.children[program].stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Waits until its handler says that the signal is there.
    fn hears(&mut self, program: usize) {
        let mut heard = [0; 6];
        self.children[program].stdout.as_mut().unwrap().read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"heard\n", "{}", self.said());
    }

    /// The memory of the job in bytes.
    fn uses(&self, job: &str) -> u64 {
        let said: serde_json::Value = serde_json::from_str(&self.out(&["usage", "--job", job, "--json"])).unwrap();
        said["fences"][0]["memory_peak_bytes"].as_u64().unwrap_or_default()
    }

    fn errors(&self, job: &str) -> String {
        fs::read_to_string(self.path(&format!("errors.{job}"))).unwrap()
    }

    fn said(&self) -> String {
        fs::read_to_string(self.path("hold")).unwrap()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for child in self.children.iter_mut().chain(&mut self.hold) {
            let _ = child.kill();
            let _ = child.wait();
        }
        for job in ["7", "8"] {
            let _ = self.command(&["close", "--job", job]).output();
        }
    }
}

#[test]
fn a_program_that_grows_has_its_signal_and_a_sentence_before_it_is_killed() {
    let Some(mut site) = Site::new("grows") else { return };
    site.hold();
    let reads = site.run("8", READS, "mem:50%:TERM");
    let mut cached = [0; 7];
    site.children[reads].stdout.as_mut().unwrap().read_exact(&mut cached).unwrap();
    assert_eq!(&cached, b"cached\n");
    let grows = site.run("7", GROWS, "mem:50%:USR1");
    assert!(site.out(&["show", "7"]).contains("mem:50%:USR1"));
    // The sentence and the signal come in any order.
    common::until("the sentence", || !site.errors("7").is_empty());
    let mut said = String::new();
    site.go_on(grows);
    site.children[grows].stdout.as_mut().unwrap().read_to_string(&mut said).unwrap();
    let ended = site.children[grows].wait().unwrap();
    assert_eq!((said.as_str(), ended.signal()), ("saved\n", Some(9)), "{}\n{}", site.errors("7"), site.said());
    let errors = site.errors("7");
    let begins = errors.starts_with("jobfence: job 7 step 0 uses ") && errors.contains(" of 200.0 MiB of memory on ");
    assert!(
        begins
            && errors.ends_with("more than 50% of its limit. At the limit the kernel kills it. It gets SIGUSR1 now.\n"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
    // It has had at least as much time as the other.
    assert_eq!((site.errors("8").as_str(), site.children[reads].try_wait().unwrap()), ("", None), "{}", site.said());
    assert!(!site.said().contains("job 8 "), "{}", site.said());
}

/// By the option, and by the site's key. There is no batch shell, so `B:` is for the command itself.
#[test]
fn a_command_of_jobfence_run_has_its_signal_and_a_sentence_before_it_is_killed() {
    for options in [["--signal-at", "mem:50%:USR1"], ["-o", "SignalAt=B:mem:50%:USR1"]] {
        let Some(mut site) = Site::new("run") else { return };
        site.hold();
        let (grows, job) = site.run_fenced(&options, GROWS);
        common::until("the sentence", || !site.errors("run").is_empty());
        let errors = site.errors("run");
        assert!(errors.starts_with(&format!("jobfence: job {job} step 0 uses ")), "{errors}");
        assert!(errors.ends_with("of its limit. At the limit the kernel kills it. It gets SIGUSR1 now.\n"), "{errors}");
        let mut said = String::new();
        site.go_on(grows);
        site.children[grows].stdout.as_mut().unwrap().read_to_string(&mut said).unwrap();
        let ended = site.children[grows].wait().unwrap();
        let errors = site.errors("run");
        assert_eq!((said.as_str(), ended.signal()), ("saved\n", Some(9)), "{errors}\n{}", site.said());
        assert_eq!(errors.lines().filter(|line| line.contains(" uses ")).count(), 1, "{errors}");
    }
}

#[test]
fn who_asks_to_be_told_in_vain_hears_it_at_once() {
    let Some(site) = Site::new("in_vain") else { return };
    let run = |options: &[&str]| {
        let mut command = site.command(&[&["run", "--signal-at"], options].concat());
        let done = command.args(["--", "true"]).output().unwrap();
        (done.status.code(), String::from_utf8(done.stderr).unwrap())
    };
    let of_root =
        (Some(1), "jobfence: --signal-at: a command of root's is told nothing; name another user by --user\n");
    for user in [&["mem:90%"][..], &["mem:90%", "--user", "root"]] {
        assert_eq!(run(user), (of_root.0, of_root.1.to_owned()));
    }
    let (status, said) = run(&["mem:90%", "--user", "nobody"]);
    let nobody =
        "jobfence: --signal-at: nobody tells the command, since 'jobfence hold' (jobfence.service) does not run\n";
    assert_eq!((status, said.as_str()), (Some(0), nobody));
    assert!(
        run(&["mem:0%", "--user", "nobody"])
            .1
            .starts_with("jobfence: --signal-at: found \"mem:0%\", expected none, or ")
    );
    assert_eq!(run(&["none"]), (Some(0), String::new()));
    let explained = |asked: &str| {
        let of_job = ["explain", "--user", "nobody", "--mem", "1G", "-o", "SignalAt=mem:80%", "--signal-at", asked];
        let said = site.out(&of_job);
        said.lines().find(|line| line.starts_with("told ")).map(str::to_owned)
    };
    let by_user = "told       by --signal-at=mem:90% (the user): needs jobfence.service";
    assert_eq!((explained("mem:90%").as_deref(), explained("none")), (Some(by_user), None));
}

/// `jobfence open` has the option, too, and `jobfence limit` changes it while the job runs.
#[test]
fn a_job_of_a_script_asks_when_it_begins_and_while_it_runs() {
    let Some(mut site) = Site::new("script") else { return };
    site.hold();
    let grows = site.run_asking(&["--signal-at", "mem:99%"], "7", GROWS);
    assert!(site.out(&["show", "7"]).contains("mem:99%"));
    // What hold has heard of the beginning lets it search for eight seconds more. Then only the change itself tells.
    std::thread::sleep(std::time::Duration::from_secs(10));
    common::until("its memory", || site.children[grows].try_wait().unwrap().is_some() || site.uses("7") > 110 << 20);
    assert_eq!(site.errors("7"), "");
    site.out(&["limit", "--job", "7", "--mem", "200M", "--cpus", "1", "--signal-at", "mem:50%:USR1"]);
    common::until("the sentence", || !site.errors("7").is_empty());
    assert!(site.errors("7").ends_with("It gets SIGUSR1 now.\n"), "{}", site.errors("7"));
}

/// Whatever key has the node note anew what the job was granted.
#[test]
fn a_limit_that_says_nothing_of_the_word_leaves_it_as_it_is() {
    let Some(site) = Site::new("kept") else { return };
    let key = |name: &str, value: &str| ["-o".to_owned(), format!("{name}={value}")];
    let [of_site, metrics] = [key("SignalAt", "mem:80%"), key("MetricsFile", "/nowhere/jobfence.prom")];
    let nothing = Vec::new();
    let keys: [Vec<String>; 3] = [nothing.clone(), of_site.to_vec(), [of_site.clone(), metrics.clone()].concat()];
    let user = site.user.to_string();
    let told = |asked: &[&str], opened: &[String], limited: &[String], again: &[&str]| {
        let words = |words: &[&str], keys: &[String]| {
            let all: Vec<&str> = words.iter().copied().chain(keys.iter().map(String::as_str)).collect();
            site.out(&all);
        };
        words(&[&["open", "--job", "7", "--user", &user, "--mem", "300M"], asked].concat(), opened);
        words(&[&["limit", "--job", "7", "--mem", "200M"], again].concat(), limited);
        let shown = site.out(&["show", "7"]);
        site.out(&["close", "--job", "7"]);
        let line = shown.lines().find(|line| line.trim_start().starts_with("told "));
        line.map(|line| line.split_whitespace().last().unwrap().to_owned())
    };
    for keys in keys.iter().chain([&metrics.to_vec()]) {
        let asked = told(&["--signal-at", "mem:99%"], keys, keys, &[]);
        assert_eq!(asked.as_deref(), Some("mem:99%"), "{keys:?}");
        assert_eq!(told(&["--signal-at", "none"], keys, keys, &[]), None, "{keys:?}");
        assert_eq!(told(&["--signal-at", "mem:99%"], keys, keys, &["--signal-at", "none"]), None, "{keys:?}");
    }
    assert_eq!(told(&[], &of_site, &of_site, &[]).as_deref(), Some("mem:80%"));
    // The site began to want it while the job ran, or a section with it holds for the job only now.
    for before in [&nothing, &metrics.to_vec()] {
        assert_eq!(told(&[], before, &of_site, &[]).as_deref(), Some("mem:80%"));
        assert_eq!(told(&["--signal-at", "none"], before, &of_site, &[]), None);
    }
    // It wants another one, or none any more.
    assert_eq!(told(&[], &of_site, &key("SignalAt", "mem:70%"), &[]).as_deref(), Some("mem:70%"));
    assert_eq!(told(&[], &of_site, &nothing, &[]), None);
}

#[test]
fn without_a_signal_there_is_a_sentence_alone() {
    let Some(mut site) = Site::new("sentence") else { return };
    site.hold();
    site.run("7", GROWS, "mem:50%");
    common::until("the sentence", || !site.errors("7").is_empty());
    assert!(site.errors("7").ends_with("At the limit the kernel kills it.\n"), "{}", site.errors("7"));
    let said = site.said();
    assert!(said.contains("its memory comes near its limit (SignalAt)") && !said.contains("it gets"), "{said}");
}

#[test]
fn a_program_with_many_processes_is_told_and_one_with_few_is_not() {
    let Some(mut site) = Site::new("processes") else { return };
    site.hold();
    let limit = ["-o", "MaxProcesses=20"];
    let few = site.run_with(&limit, "8", SPINS, "pids:75%:TERM");
    let many = site.run_with(&limit, "7", FORKS, "mem:90%:TERM,pids:75%:USR1");
    common::until("the sentence", || !site.errors("7").is_empty());
    site.hears(many);
    let errors = site.errors("7");
    assert!(errors.starts_with("jobfence: job 7 step 0 has 16 of 20 processes and threads on "), "{errors}");
    assert!(
        errors.ends_with(", more than 75% of its limit. At the limit it can start no other. It gets SIGUSR1 now.\n")
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert_eq!((site.errors("8").as_str(), site.children[few].try_wait().unwrap()), ("", None), "{}", site.said());
}

#[test]
fn a_program_that_its_quota_stops_is_told_and_one_below_it_is_not() {
    let Some(mut site) = Site::new("throttled") else { return };
    site.hold();
    let waits = site.run("8", FORKS, "cpu:throttled=2%:TERM");
    let spins = site.run_with(&["--cpu-limit", "0.1"], "7", SPINS, "cpu:throttled=2%:USR1");
    common::until("the sentence", || !site.errors("7").is_empty());
    site.hears(spins);
    let errors = site.errors("7");
    assert!(
        errors.starts_with("jobfence: job 7 step 0 was throttled in ") && errors.contains("% of the last minute on ")
    );
    assert!(
        errors.ends_with(", more than 2%. It wants more CPU time than it has been granted. It gets SIGUSR1 now.\n"),
        "{errors}"
    );
    assert_eq!((site.errors("8").as_str(), site.children[waits].try_wait().unwrap()), ("", None), "{}", site.said());
}

#[test]
fn a_program_that_waits_is_told_and_one_that_does_not_wait_is_not() {
    let Some(mut site) = Site::new("pressure") else { return };
    if !PathBuf::from("/proc/pressure/cpu").exists() || !common::has_cgroup2() {
        return common::skip("this kernel measures no pressure of cgroups");
    }
    site.hold();
    let calm = site.run("8", FORKS, "pressure:cpu=20%:TERM,pressure:memory=20%:TERM,pressure:io=20%:TERM");
    let waits = site.run_with(&["--cpu-limit", "0.1"], "7", SPINS, "pressure:memory=20%:TERM,pressure:cpu=20%:USR1");
    common::until("the sentence", || !site.errors("7").is_empty());
    site.hears(waits);
    let errors = site.errors("7");
    assert!(errors.starts_with("jobfence: job 7 step 0 waited for a CPU in "), "{errors}");
    assert!(
        errors.contains("% of the last ten seconds on ") && errors.ends_with(", more than 20%. It gets SIGUSR1 now.\n")
    );
    assert_eq!((site.errors("8").as_str(), site.children[calm].try_wait().unwrap()), ("", None), "{}", site.said());
}
