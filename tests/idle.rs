// SPDX-License-Identifier: GPL-2.0-or-later
//! `IdleAction` where no scheduler's program tells the user and ends the job: SIGTERM to the job's processes, and then SIGKILL. Time passes
//! faster here, in a program that was built for tests.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

mod common;

use common::Held as Site;

/// A user that has no jobs in other tests.
fn user() -> u32 {
    common::uids()
}

/// Says that it is ready and, if it may, that it has got SIGTERM.
const PROGRAM: &str = "
import signal, sys, time
def told(*_):
    print('told', flush=True)
    if sys.argv[1] == 'obeys':
        sys.exit(0)
signal.signal(signal.SIGTERM, told)
print('ready', flush=True)
while True:
    time.sleep(1000)
";

fn site(test: &str) -> Option<Site> {
    Site::new("idle", test, &["7", "8"])
}

impl Site {
    fn hold(&mut self, action: &str) {
        let action = format!("IdleAction={action}");
        let more = ["-o", "ReapInterval=1", "-o", "SampleInterval=1", "-o", "IdleAfter=1m", "-o", &action];
        let mut hold = self.command(&[&["hold"][..], &more].concat());
        hold.env("JOBFENCE_TEST_IDLE_SPEED", "20");
        self.start_hold(hold);
    }

    fn run(&mut self, job: &str, how: &str) {
        self.out(&["open", "--job", job, "--user", &user().to_string(), "--mem", "200M", "--cpus", "1"]);
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", PROGRAM, how]).uid(user()).gid(user()).current_dir("/").stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        self.out(&["attach", "--job", job, &child.id().to_string()]);
        self.children.push(child);
    }
}

#[test]
fn an_idle_job_is_told_and_what_does_not_end_is_killed() {
    let Some(mut site) = site("cancel") else { return };
    site.run("7", "obeys not");
    site.run("8", "obeys");
    site.hold("cancel");
    for (job, child) in [("7", 0), ("8", 1)] {
        common::until("SIGTERM", || {
            site.said().contains(&format!("job {job} of")) && site.said().contains("is cancelled, since it")
        });
        let mut told = String::new();
        let last = site.children.len() - 1;
        let mut child = site.children.remove(child.min(last));
        child.stdout.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!(told, "told\n", "once");
        let status = child.wait().unwrap();
        use std::os::unix::process::ExitStatusExt;
        let ended = (status.code(), status.signal());
        assert_eq!(ended, if job == "7" { (None, Some(9)) } else { (Some(0), None) }, "job {job}: {}", site.said());
    }
    // It is said after the signal.
    common::until("what is left", || site.said().contains("what is left of job 7 of"));
    let said = site.said();
    assert!(!said.contains("what is left of job 8 of"), "{said}");
    assert!(said.contains("it is cancelled in 1:00 if that stays so"), "{said}");
    let shown = site.out(&["show", "7"]);
    assert!(shown.contains("it is cancelled for that"), "{shown}");
}

#[test]
fn a_card_says_what_was_held_and_not_used() {
    let Some(mut site) = site("card") else { return };
    site.hold("warn");
    let sampled = ["-o", "SampleInterval=1"];
    let run = |site: &Site, more: &[&str]| {
        let program = ["--", "/usr/bin/python3", "-c", "print(flush=True)\nimport sys\nsys.stdin.readline()"];
        // What stands behind `--` is the program's.
        let mut command = Command::new(site.path("jobfence"));
        let settings = site.command(&[]);
        command.args(["run", "--cpus", "1", "--usage-card", "wasteful"]);
        command.args(settings.get_args()).args(more).args(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        child
    };
    let (idle, unread) = (run(&site, &sampled), run(&site, &[]));
    common::until("both are idle", || site.said().matches("has used almost no CPU time").count() == 2);
    // What a sample finds, it notes.
    std::thread::sleep(std::time::Duration::from_secs(3));
    let card = |child: Child| {
        let done = child.wait_with_output().unwrap();
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    let said = card(idle);
    let line = said.lines().find(|line| line.starts_with("  It used almost no CPU time for "));
    assert!(line.is_some_and(|line| line.ends_with(" at a time.")), "{said}\n{}", site.said());
    // Without SampleInterval nobody has noted anything, and nothing is looked for.
    assert!(!card(unread).contains("It used almost no CPU time"));
}

#[test]
fn with_signal_it_goes_on_if_it_does_not_end_itself() {
    let Some(mut site) = site("signal") else { return };
    site.run("7", "obeys not");
    site.hold("signal");
    common::until("SIGTERM", || site.said().contains("gets SIGTERM, since it"));
    let mut told = [0; 5];
    site.children[0].stdout.as_mut().unwrap().read_exact(&mut told).unwrap();
    assert_eq!(&told, b"told\n");
    common::until("what was done", || site.out(&["show", "7"]).contains("its processes have got SIGTERM for that"));
    // Nothing follows, though it would be time for SIGKILL.
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!(site.children[0].try_wait().unwrap(), None);
    assert!(!site.said().contains("SIGKILL"), "{}", site.said());
}
