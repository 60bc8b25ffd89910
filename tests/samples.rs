// SPDX-License-Identifier: GPL-2.0-or-later
//! `SampleInterval`: what `jobfence hold` samples of real fences, who can read it, and where it goes.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

mod common;

use common::Held as Site;

/// Users that have no jobs in other tests.
fn user() -> u32 {
    common::uids()
}
fn stranger() -> u32 {
    common::uids() + 1
}

/// An id that contains commands for a terminal and for a page.
const HOSTILE: &str = "7\u{1b}[2J<script>\n\u{202e}x";

/// First a little memory and no CPU time, until it is told to go on; then more of both.
const PROGRAM: &str = "print(flush=True)\nsys.stdin.readline()\nb = bytearray(60 << 20)\nwhile True: pass";

fn site(test: &str) -> Option<Site> {
    Site::new("samples", test, &["7", "8", HOSTILE])
}

impl Site {
    fn hold(&mut self, interval: &str) {
        self.hold_with(&["-o", &format!("SampleInterval={interval}")]);
    }

    fn hold_with(&mut self, args: &[&str]) {
        let hold = self.command(&[&["hold", "-o", "ReapInterval=1"], args].concat());
        self.start_hold(hold);
    }

    /// Where this directory is /sys/class.
    fn hold_below(&mut self, class: &Path, args: &[&str]) {
        let command = self.command(&[&["hold", "-o", "ReapInterval=1", "-o", "SampleInterval=1"], args].concat());
        let mut hold = Command::new("unshare");
        hold.args(["--mount", "--propagation", "private", "sh", "-c"]);
        hold.args(["mount --bind \"$0\" /sys/class && exec \"$@\""]).arg(class);
        hold.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
        self.start_hold(hold);
    }

    /// Waits until no step has a file.
    fn no_files(&self) {
        let deadline = common::soon();
        while !self.files().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(self.files(), Vec::<PathBuf>::new());
    }

    fn end_hold(&mut self) {
        let mut hold = self.hold.take().unwrap();
        hold.kill().unwrap();
        hold.wait().unwrap();
    }

    /// Makes a fence with a program in it.
    fn run(&mut self, job: &str) {
        let uid = user().to_string();
        self.out(&["open", "--job", job, "--user", &uid, "--mem", "200M", "--cpus", "0.5"]);
        let mut command = Command::new("python3");
        command
            .args(["-c", &format!("import sys\nsys.stdin.readline()\n{PROGRAM}")])
            .uid(user())
            .gid(user())
            .current_dir("/");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        self.out(&["attach", "--job", job, &child.id().to_string()]);
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        self.children.push(child);
    }

    fn series(&self, job: &str) -> Value {
        let shown: Value = serde_json::from_str(&self.out(&["show", job, "--json"])).unwrap();
        shown["fences"][0]["series"].clone()
    }

    /// Waits until the live series has so many points.
    fn points(&self, job: &str, least: usize) -> Value {
        let deadline = common::soon();
        loop {
            let series = self.series(job);
            if series["at_seconds"].as_array().is_some_and(|at| at.len() >= least) {
                return series;
            }
            assert!(Instant::now() < deadline, "{least} points in {series}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The series of ended steps, without those of tests running at the same time.
    fn logged(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("log/usage.jsonl.series")).unwrap_or_default();
        let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        all.filter(|line| line["uid"] == user()).collect()
    }

    /// The files of live steps, without those of tests running at the same time.
    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("run-series")).into_iter().flatten().flatten();
        let is_ours = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&format!("{}-", user()));
        let mut files: Vec<PathBuf> = entries.filter(is_ours).map(|entry| entry.path()).collect();
        files.sort();
        files
    }

    /// The file of the only step.
    fn shown(&self) -> PathBuf {
        let mut shown = self.files();
        shown.retain(|file| file.extension().is_some_and(|ending| ending == "json"));
        let [file] = &shown[..] else { panic!("{shown:?}") };
        file.clone()
    }

    /// Limits the number of files that `jobfence hold` may have open.
    fn starve(&self, files: &str) {
        let pid = self.hold.as_ref().unwrap().id().to_string();
        let done = Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={files}:")]).status().unwrap();
        assert!(done.success());
    }
}

fn column(series: &Value, name: &str) -> Vec<f64> {
    let all = series[name].as_array().unwrap_or_else(|| panic!("{name} in {series}"));
    // The first look may come while the fence is being made.
    let of = |(at, value): (usize, &Value)| if at == 0 && value.is_null() { Some(0.0) } else { value.as_f64() };
    all.iter().enumerate().map(|value| of(value).unwrap_or_else(|| panic!("{name} in {series}"))).collect()
}

#[test]
fn a_series_shows_what_a_job_did_when() {
    let Some(mut site) = site("when") else { return };
    site.hold("1");
    site.run("7");
    let asleep = site.points("7", 3)["at_seconds"].as_array().unwrap().len();
    site.children[0].stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let used = |site: &Site| {
        let usage: Value = serde_json::from_str(&site.out(&["usage", "--job", "7", "--json"])).unwrap();
        usage["fences"][0]["cpu_seconds"].as_f64().unwrap()
    };
    common::until("it is busy", || used(&site) > 0.5);
    let least = used(&site);
    let busy = site.points("7", asleep + 1)["at_seconds"].as_array().unwrap().len();
    let series = site.points("7", busy + 3);
    let most = used(&site);
    let (at, cpu, memory) =
        (column(&series, "at_seconds"), column(&series, "cpu_seconds"), column(&series, "memory_bytes"));
    // A busy machine may delay one, and skip some.
    let gaps: Vec<f64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| *gap >= 0.3) && gaps.iter().any(|gap| *gap < 3.0), "{at:?}");
    // It waited, and then wanted more than its half CPU: the kernel says how much it had.
    assert!(cpu[asleep - 1] < 0.5 && memory[asleep - 1] < 40e6, "{series}");
    let (last, before) = (at.len() - 1, at.len() - 3);
    assert!((least..=most).contains(&cpu[last]), "between {least} and {most}: {series}");
    let rate = (cpu[last] - cpu[before]) / (at[last] - at[before]);
    assert!((0.0..0.75).contains(&rate) && cpu[last] > cpu[before], "{rate} CPUs at the end: {series}");
    assert!(memory[last] > 60e6, "{series}");
    assert_eq!(column(&series, "processes")[last], 1.0, "{series}");

    // Only the user can see it.
    let seen = site.as_user(user(), &["show", "7"]);
    let text = String::from_utf8(seen.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("over time")).unwrap_or_else(|| panic!("{text}"));
    // Its memory is at a third of the limit. The quota held it back, if the machine had half a CPU for it.
    let is_held_back = |series: &Value| {
        let counters = ["periods", "throttled_periods"].map(|name| column(series, name));
        let [periods, held] = counters.map(|all| all.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<f64>>());
        periods.iter().zip(&held).any(|(periods, held)| *held > 0.0 && held * 10.0 >= *periods)
    };
    let later = site.points("7", busy + 3);
    let has_mark = line.contains('!');
    assert!(if has_mark { is_held_back(&later) } else { !is_held_back(&series) }, "{text}{series}{later}");
    assert!(line.contains("CPUs") && line.contains(" of 0.50"), "{text}");
    let of_series: Vec<&str> = text.lines().skip_while(|line| !line.contains("over time")).take(4).collect();
    let memory = of_series.iter().find(|line| line.contains(" of 200.0 MiB")).unwrap_or_else(|| panic!("{text}"));
    assert!(memory.contains(" at most 6") && memory.contains('▃') && !memory.contains('!'), "{text}");
    assert!(of_series.iter().all(|line| line.chars().count() <= 80), "{text}");
    assert_eq!(of_series.iter().any(|line| line.contains("! at the limit")), has_mark, "{text}");
    // On v1 a sample does not add up what each directory below has counted.
    for name in ["oom_kills", "memory_max_events"] {
        assert!([Value::Null, 0.into()].contains(&series[name][last]), "{name} in {series}");
    }
    let [periods, throttled] = ["periods", "throttled_periods"].map(|name| column(&series, name)[last]);
    assert!(periods > 0.0 && periods >= throttled, "{series}");
    let file = site.shown();
    for (uid, can_read) in [(stranger(), false), (user(), true)] {
        // The stranger is in the user's group.
        let read = Command::new("cat").arg(&file).uid(uid).gid(user()).output().unwrap();
        assert_eq!(read.status.success(), can_read, "{uid} reads {}", file.display());
    }
    let list = Command::new("ls").arg(site.path("run-series")).uid(user()).gid(user()).output().unwrap();
    assert!(!list.status.success(), "users can list all files");

    // The job ends: its series moves from the live ones into the log, and onto the page.
    site.out(&["close", "--job", "7"]);
    site.no_files();
    let [logged] = &site.logged()[..] else { panic!("{:?}", site.logged()) };
    assert_eq!(
        (&logged["job"], &logged["uid"], &logged["schema"]),
        (&"7".into(), &user().into(), &"jobfence-series-1".into())
    );
    assert!(column(logged, "at_seconds").starts_with(&at), "{logged}");
    let metadata = fs::metadata(site.path("log/usage.jsonl.series")).unwrap();
    assert_eq!((metadata.uid(), metadata.mode() & 0o777), (0, 0o600));
    let page = site.out(&["report", "7", "--html=-"]);
    assert!(page.contains("<h2>Over time</h2>") && page.contains("CPUs over time"), "{page}");
}

#[test]
fn the_energy_of_the_node_is_divided() {
    let Some(mut site) = site("energy") else { return };
    let (class, metrics) = (site.path("class"), site.path("jobfence.prom"));
    let zone = class.join("powercap/intel-rapl:0");
    fs::create_dir_all(&zone).unwrap();
    fs::write(zone.join("name"), "package-0\n").unwrap();
    fs::write(zone.join("max_energy_range_uj"), "262143328850\n").unwrap();
    let counter = |microjoules: u64| {
        fs::write(zone.join("next"), format!("{microjoules}\n")).unwrap();
        fs::rename(zone.join("next"), zone.join("energy_uj")).unwrap();
    };
    counter(262_143_000_000);
    site.hold_below(&class, &["-o", &format!("MetricsFile={}", metrics.display())]);
    site.run("7");
    site.children[0].stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    site.points("7", 3);
    // The counter has begun anew at 0, and there it stays.
    counter(3_599_671_150);
    let parts = || -> Vec<f64> {
        let text = fs::read_to_string(&metrics).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.strip_prefix("jobfence_node_energy_joules_total{part="));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect()
    };
    common::until("energy is known", || parts().iter().sum::<f64>() > 0.0);
    let [jobs, others, idle] = parts()[..] else { panic!("{:?}", parts()) };
    assert!((jobs + others + idle - 3600.0).abs() < 0.01, "{jobs} + {others} + {idle}");
    assert!(jobs > 0.0, "{jobs} + {others} + {idle}");
    let shown = site.out(&["show", "7"]);
    assert!(shown.lines().any(|line| line.starts_with("  energy ") && line.contains(" Wh")), "{shown}");
    site.out(&["close", "--job", "7"]);
    let report = || serde_json::from_str::<Value>(&site.out(&["report", "7", "--json"])).unwrap();
    // As an epilog asks: jobfence hold need not have seen the end yet.
    assert!(report()["runs"][0]["energy_joules"].as_f64().is_some_and(|energy| energy > 0.0), "{}", report());
    site.no_files();
    let report = report();
    let run = &report["runs"][0];
    let (energy, of_cpu) = (run["energy_joules"].as_f64().unwrap(), run["energy_cpu_seconds"].as_f64().unwrap());
    // Other tests have jobs of their own, but see no counter.
    assert!(energy > 0.0 && energy <= jobs + 0.01, "{energy} of {jobs}: {run}");
    assert!(of_cpu > 0.0 && of_cpu <= run["cpu_seconds"].as_f64().unwrap() + 0.01, "{run}");
    // The CO2 is that of all of it.
    let carbon = site.out(&["report", "7", "--json", "-o", "CarbonIntensity=400"]);
    let carbon: Value = serde_json::from_str(&carbon).unwrap();
    let grams = carbon["runs"][0]["carbon_grams"].as_f64().unwrap();
    assert!((grams - energy / 3.6e6 * 400.0).abs() < 1e-6, "{grams} for {energy}");
    let text = site.out(&["report", "7", "-o", "CarbonIntensity=400"]);
    assert!(text.contains("  energy    ") && text.contains(" of its CPU time\n"), "{text}");
    assert!(text.contains("  carbon    ") && text.contains(" g of CO2\n"), "{text}");
    let page = site.out(&["report", "7", "-o", "CarbonIntensity=400", "--html=-"]);
    assert!(page.contains("Energy") && page.contains(" of its CPU time; ") && page.contains(" g of CO2"), "{page}");
}

/// Reads the notes for cards in this site's directories, or writes them all anew.
const NOTES: &str = "import os, sys
for place, *_ in os.walk('/sys/fs/cgroup'):
    if f'/{sys.argv[1]}/' in place and 'trusted.jobfence.card' in os.listxattr(place):
        for text in sys.argv[2:]:
            os.setxattr(place, 'trusted.jobfence.card', text.encode())
        print(os.getxattr(place, 'trusted.jobfence.card').decode())
";

#[test]
fn what_a_card_is_to_say_has_an_age_and_is_withdrawn() {
    let Some(mut site) = site("noted") else { return };
    let class = site.path("class");
    let zone = class.join("powercap/intel-rapl:0");
    fs::create_dir_all(&zone).unwrap();
    fs::write(zone.join("name"), "package-0\n").unwrap();
    fs::write(zone.join("max_energy_range_uj"), "262143328850\n").unwrap();
    let joules = std::cell::Cell::new(0_u64);
    let burn = |class: &Path| {
        let zone = class.join("powercap/intel-rapl:0");
        joules.set(joules.get() + 5_000_000);
        fs::write(zone.join("next"), format!("{}\n", joules.get())).unwrap();
        fs::rename(zone.join("next"), zone.join("energy_uj")).unwrap();
    };
    burn(&class);
    let notes = |site: &Site, new: &[&str]| {
        let done = Command::new("python3").args(["-c", NOTES, &site.base.name]).args(new).output().unwrap();
        String::from_utf8(done.stdout).unwrap()
    };
    let run = |site: &Site| {
        let mut run = site.command(&["run", "--usage-card=always", "-o", "SampleInterval=1"]);
        run.args(["--", "sh", "-c", "read line; sleep 0.1"]);
        run.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let card = |mut job: std::process::Child| {
        job.stdin.take().unwrap().write_all(b"\n").unwrap();
        let done = job.wait_with_output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stderr).unwrap()
    };
    let since_boot = || fs::read_to_string("/proc/uptime").unwrap().split('.').next().unwrap().to_owned();
    // However long this takes, the first is not old: it is of a time that has not come yet.
    for (written, is_old) in [(u64::from(u32::MAX), false), (0, true)] {
        site.hold_below(&class, &[]);
        let job = run(&site);
        common::until("a note", || {
            burn(&class);
            notes(&site, &[]).contains("\nenergy\t")
        });
        site.end_hold();
        let noted = notes(&site, &[]);
        let [head, lines] = noted.splitn(2, '\n').collect::<Vec<_>>()[..] else { panic!("{noted}") };
        let ["1", at, clock] = head.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{noted}") };
        let age = since_boot().parse::<u64>().unwrap() - at.parse::<u64>().unwrap();
        assert!(age < 300 && clock.len() == "2026-11-30 14:05".len(), "{noted}");
        // A remark makes a card of what would be a line.
        notes(&site, &[&format!("1 {written} {clock}\n{}\n\t\tIt waited.", lines.trim_end())]);
        let said = card(job);
        assert!(said.contains("\n  energy ") && said.contains("\n  It waited.\n"), "{said}");
        let as_of = said.lines().find(|line| line.starts_with("  as of "));
        let is_said = as_of.is_some_and(|line| line.contains(&format!(" {clock}: nothing newer is")));
        assert_eq!((as_of.is_some(), is_said), (is_old, is_old), "{said}");
    }
    // What is no longer known is no longer said.
    let job = run(&site);
    site.hold_below(&class, &[]);
    common::until("a note", || {
        burn(&class);
        notes(&site, &[]).contains("\nenergy\t")
    });
    site.end_hold();
    fs::remove_dir_all(&zone).unwrap();
    fs::create_dir_all(class.join("powercap")).unwrap();
    let series = fs::read_dir(site.path("run-series")).into_iter().flatten().flatten();
    series.for_each(|entry| fs::remove_file(entry.path()).unwrap());
    site.hold_below(&class, &[]);
    common::until("no note", || notes(&site, &[]).is_empty());
    assert!(!card(job).contains("energy"));
}

#[test]
fn a_series_outlives_jobfence_hold() {
    let Some(mut site) = site("outlives") else { return };
    site.hold("1");
    site.run("7");
    site.run(HOSTILE);
    let before = site.points("7", 3);
    site.points(HOSTILE, 2);
    site.end_hold();
    // One of them ends while nothing samples.
    site.out(&["close", "--job", HOSTILE]);
    assert_eq!(site.logged(), Vec::<Value>::new());
    site.hold("1");
    let after = site.points("7", 5);
    assert!(column(&after, "at_seconds").starts_with(&column(&before, "at_seconds")), "{before} and then {after}");
    let [logged] = &site.logged()[..] else { panic!("{:?}", site.logged()) };
    assert_eq!(logged["job"], HOSTILE);
    let page = site.out(&["report", HOSTILE, "--html=-"]);
    assert!(!page.contains("<script>") && !page.contains('\u{202e}'), "{page}");
    assert!(page.contains("<h2>Over time</h2>"), "{page}");
    site.out(&["close", "--job", "7"]);
}

#[test]
fn a_step_that_is_seen_in_part_has_one_series() {
    let Some(mut site) = site("part") else { return };
    site.run("7");
    // Without a process in it, a part can be removed.
    site.children.drain(..).for_each(|mut child| {
        child.kill().unwrap();
        child.wait().unwrap();
    });
    let of_step = |entry: fs::DirEntry| entry.path().join(&site.base.name).join(format!("uid_{}/job_7/step_0", user()));
    let hierarchies = fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(of_step);
    let parts: Vec<PathBuf> = hierarchies.filter(|step| step.is_dir()).collect();
    // On v2 there is only one.
    let [part, _, ..] = parts.as_slice() else { return };
    fs::remove_dir(part).unwrap();
    site.hold("1");
    let before = column(&site.points("7", 2), "at_seconds");
    fs::create_dir(part).unwrap();
    let after = column(&site.points("7", before.len() + 2), "at_seconds");
    assert!(after.starts_with(&before), "{before:?} and then {after:?}");
    site.shown();
}

#[test]
fn a_full_log_of_series_is_set_aside_and_read() {
    let Some(mut site) = site("rotates") else { return };
    site.hold_with(&["-o", "SampleInterval=1", "-o", "UsageLogSize=1M"]);
    let log = site.path("log/usage.jsonl.series");
    let mut lines = Vec::new();
    for job in ["7", "8"] {
        site.run(job);
        site.points(job, 2);
        site.out(&["close", "--job", job]);
        site.no_files();
        lines = site.logged();
        // As after a busy day: the next line does not fit. The last line is the job's own.
        let others = format!("{}\n", lines[0]).replace("\"job\":\"7\"", "\"job\":\"9\"");
        if job == "7" {
            let text = format!("{}{}\n", others.repeat((128 << 10) / others.len()), lines[0]);
            fs::write(&log, text).unwrap();
        }
    }
    assert_eq!(lines.iter().map(|line| line["job"].clone()).collect::<Vec<_>>(), ["8"]);
    let all = fs::read_dir(site.path("log")).unwrap().flatten();
    assert_eq!(all.filter(|entry| entry.file_name().to_string_lossy().starts_with("usage.jsonl.series")).count(), 2);
    for job in ["7", "8"] {
        let page = site.out(&["report", job, "--html=-"]);
        assert!(page.contains("<h2>Over time</h2>"), "{job}: {page}");
    }
}

#[test]
fn a_sample_that_fails_loses_nothing() {
    let Some(mut site) = site("fails") else { return };
    site.hold("1");
    site.run("7");
    let before = site.points("7", 3);
    // First nothing can be opened, and then not all that must be: some steps are not seen.
    for files in ["3", "8", "9", "10", "11"] {
        site.starve(files);
        std::thread::sleep(Duration::from_millis(1500));
    }
    site.starve("1024");
    let more = column(&before, "at_seconds").len() + 2;
    let after = site.points("7", more);
    assert!(column(&after, "at_seconds").starts_with(&column(&before, "at_seconds")), "{before} and then {after}");
    assert_eq!(site.logged(), Vec::<Value>::new(), "a step that lives has ended");
    site.out(&["close", "--job", "7"]);
}

#[test]
fn a_user_fills_no_file_system_with_a_series() {
    let Some(mut site) = site("fills") else { return };
    site.hold("1");
    site.run("7");
    let mut points = site.points("7", 2)["at_seconds"].as_array().unwrap().len();
    // All files belong to root, so the user can neither write to them nor change their mode.
    for file in site.files() {
        assert_eq!(fs::metadata(&file).unwrap().uid(), 0, "{} is a user's", file.display());
        for script in ["chmod 600 \"$1\"", "echo >> \"$1\"", "echo > \"$1.other\""] {
            let mut tried = Command::new("sh");
            let tried = tried.args(["-c", script, "sh"]).arg(&file).uid(user()).gid(user()).output().unwrap();
            assert!(!tried.status.success(), "{script} of {}", file.display());
        }
    }
    // A user who keeps each version open uses no more space than one who opens none.
    let mut opened = Vec::new();
    for _ in 0..4 {
        opened.push(fs::File::open(site.shown()).unwrap());
        points = site.points("7", points + 1)["at_seconds"].as_array().unwrap().len();
    }
    let mut numbers: Vec<u64> = opened.iter().map(|file| file.metadata().unwrap().ino()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert!(numbers.len() <= 2, "files of one step: {numbers:?}");
    site.out(&["close", "--job", "7"]);
    site.no_files();
    assert!(opened.iter().all(|file| file.metadata().unwrap().len() == 0), "a step that has ended keeps room");
}

#[test]
fn a_file_of_a_users_goes() {
    let Some(mut site) = site("goes") else { return };
    // As earlier releases made them.
    fs::create_dir(site.path("run-series")).unwrap();
    for name in ["1-0.user", "2-0.json"] {
        let file = site.path("run-series").join(format!("{}-{name}", user()));
        fs::write(&file, "{}").unwrap();
        std::os::unix::fs::chown(&file, Some(user()), None).unwrap();
    }
    site.hold("1");
    site.no_files();
}

#[test]
fn a_series_ends_where_it_is_switched_off() {
    let Some(mut site) = site("switched") else { return };
    site.hold("1");
    site.run("7");
    site.points("7", 3);
    site.end_hold();
    site.hold("never");
    site.no_files();
    assert_eq!(site.logged().len(), 1);
    site.out(&["close", "--job", "7"]);
}

#[test]
fn the_key_can_change_while_jobfence_hold_runs() {
    let Some(mut site) = site("changed") else { return };
    let config = site.path("jobfence.conf");
    let write = |interval: &str| fs::write(&config, format!("SampleInterval={interval}\n")).unwrap();
    write("never");
    site.hold_with(&["--config", config.to_str().unwrap()]);
    site.run("7");
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(site.series("7"), Value::Null);
    write("1");
    site.points("7", 2);
    write("never");
    site.no_files();
    assert_eq!(site.logged().len(), 1);
    write("1");
    let after = site.points("7", 2);
    assert!(column(&after, "at_seconds")[0] > column(&site.logged()[0], "at_seconds")[1], "{after}");
    site.out(&["close", "--job", "7"]);
}

/// A full file system, until it gets space.
struct Small(PathBuf);

impl Small {
    fn mount(at: PathBuf) -> Self {
        fs::create_dir(&at).unwrap();
        let small = Self(at);
        small.mounted("size=4k,mode=711");
        small
    }

    fn mounted(&self, options: &str) {
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(&self.0).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_costs_no_point() {
    let Some(mut site) = site("full") else { return };
    let small = Small::mount(site.path("run-series"));
    site.hold("1");
    site.run("7");
    let said = || fs::read_to_string(site.path("said")).unwrap();
    common::until("the disk is full", || said().contains("No space left on device"));
    std::thread::sleep(Duration::from_millis(3500));
    assert_eq!(said().matches("No space left on device").count(), 1, "{}", said());
    let shown: Value = serde_json::from_str(&site.out(&["show", "7", "--json"])).unwrap();
    let full = shown["fences"][0]["uptime_seconds"].as_f64().unwrap();
    small.mounted("remount,size=1m");
    let series = site.points("7", 6);
    let at = column(&series, "at_seconds");
    // A busy machine may delay one, and skip some.
    assert!(at.iter().filter(|at| **at < full).count() >= 2, "points that are missing: {at:?}, full until {full}");
    assert!(at.windows(2).any(|pair| pair[1] - pair[0] < 1.9), "points that are missing: {at:?}");
    site.out(&["close", "--job", "7"]);
    site.no_files();
    assert_eq!(column(&site.logged()[0], "at_seconds")[..6], at[..6]);
}

#[test]
fn a_file_that_a_user_has_planted_is_not_followed() {
    let Some(mut site) = site("planted") else { return };
    // Any user can write to it: nothing is written there, and the jobs go on.
    fs::create_dir(site.path("run-series")).unwrap();
    fs::set_permissions(site.path("run-series"), fs::Permissions::from_mode(0o777)).unwrap();
    site.hold("1");
    site.run("8");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(site.files(), Vec::<PathBuf>::new());
    assert_eq!(site.series("8"), Value::Null);
    let text = site.out(&["show", "8"]);
    assert!(!text.contains("over time"), "{text}");
    site.out(&["close", "--job", "8"]);
}

#[test]
fn nothing_is_sampled_unless_it_is_wanted() {
    let Some(mut site) = site("off") else { return };
    site.hold("never");
    site.run("8");
    std::thread::sleep(Duration::from_secs(2));
    assert!(!site.path("run-series").exists());
    assert_eq!(site.series("8"), Value::Null);
    site.out(&["close", "--job", "8"]);
    assert_eq!(site.logged(), Vec::<Value>::new());
}
