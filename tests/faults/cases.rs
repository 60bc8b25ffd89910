// SPDX-License-Identifier: GPL-2.0-or-later
//! The runs: which call fails or is the last, and how it is judged what came of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jobfence::cgroup::layout::{Layout, Version};
use jobfence::sys::dir::Dir;
use libc::c_long;
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;

mod calls;
mod life;
mod site;
mod table;
mod trace;

use crate::common;
use crate::stand_in::StandIn;
use site::{JOB, Said, Settings, Site, uid};
use table::{Outcome, Table, Verdict};
use trace::{Act, Fault, Missing, Point, Traced, Watch};

/// As in slurmstepd.c.
const PHASES: [&str; 6] = ["", "begin", "attach", "task_exit", "end", "reap"];

fn phase(number: u64) -> &'static str {
    usize::try_from(number).ok().and_then(|number| PHASES.get(number)).copied().unwrap_or("?")
}

const NOTHING: Missing<'static> = Missing(&[]);

/// How long processes that were killed may take to be gone, on a machine of whatever speed.
const GONE_BY: Duration = trace::PATIENCE;

/// What `JOBFENCE_FAULTS` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// One of each kind, in a minute.
    Chief,
    All,
    /// One of so many parts of what is in `All` and not in `Chief`.
    Slice(u64, u64),
}

impl Part {
    fn asked() -> Self {
        let Ok(asked) = std::env::var("JOBFENCE_FAULTS") else { return Self::Chief };
        if asked == "all" {
            return Self::All;
        }
        let slice = asked.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        let slice = slice.filter(|(number, of)| (1..=*of).contains(number));
        let (number, of) = slice.unwrap_or_else(|| panic!("JOBFENCE_FAULTS: found {asked:?}, expected all or K/N"));
        Self::Slice(number, of)
    }

    /// A fault is in the same slice whatever else there is.
    fn has(self, fault: &Fault, is_chief: bool) -> bool {
        match self {
            Self::Chief => is_chief,
            Self::All => true,
            Self::Slice(number, of) => !is_chief && fault.number() % of == number - 1,
        }
    }
}

/// Then there may be none of a sort.
fn is_slice() -> bool {
    matches!(Part::asked(), Part::Slice(..))
}

/// What is done at these calls: each fails in all of its ways. The chief ones are the first call of each kind in one of its ways, in turn.
fn errors(points: &[Point], first: usize) -> Vec<Fault> {
    errors_but(calls::lies, points, first, |_| true)
}

/// The same, with answers of one's own that are none, and calls that are never chief.
fn errors_but(
    lies: fn(c_long, &str, Errno, bool) -> bool,
    points: &[Point],
    first: usize,
    can_be_chief: impl Fn(&Point) -> bool,
) -> Vec<Fault> {
    let part = Part::asked();
    let (mut turns, mut kinds) = (BTreeMap::new(), BTreeSet::new());
    let mut faults = Vec::new();
    for at in points {
        let call = calls::find(at.number).unwrap_or_else(|| panic!("how can {} fail? call {}", at.text, at.number));
        let begins = phase(at.phase) == "begin";
        let honest: Vec<&Errno> =
            call.errors.iter().filter(|errno| !lies(at.number, &at.text, **errno, begins)).collect();
        let is_first = !honest.is_empty() && can_be_chief(at) && kinds.insert(at.kind());
        let turn = turns.entry(at.number).or_insert(first);
        for (way, errno) in honest.iter().enumerate() {
            let fault = Fault { at: at.clone(), act: Act::Fail(**errno) };
            if part.has(&fault, is_first && way == *turn % honest.len()) {
                faults.push(fault);
            }
        }
        *turn += usize::from(is_first);
    }
    faults
}

/// The calls that are made each time. How often it is tried to remove what the kernel has not let go of is chance.
fn always_made(mut runs: Vec<Vec<Point>>) -> Vec<Point> {
    let mut points = runs.pop().unwrap();
    points.retain(|at| runs.iter().all(|run| run.iter().any(|other| other.is(at))));
    points
}

/// How many undisturbed runs say what is made each time.
const RECORDINGS: usize = 4;

/// The process dies before and after each of these calls. The chief ones are the first and the last of each kind that others can see:
/// at another call it is as after the last of these.
fn deaths(points: &[Point]) -> Vec<Fault> {
    let part = Part::asked();
    let last: BTreeMap<_, _> = points.iter().enumerate().map(|(place, at)| (at.kind(), place)).collect();
    let mut kinds = BTreeSet::new();
    let mut faults = Vec::new();
    for (place, at) in points.iter().enumerate() {
        let changes = calls::find(at.number).is_none_or(|call| call.changes);
        let is_chief = changes && (kinds.insert(at.kind()) || last.get(&at.kind()) == Some(&place));
        let both = [Act::DieBefore, Act::DieAfter].map(|act| Fault { at: at.clone(), act });
        faults.extend(both.into_iter().filter(|fault| part.has(fault, is_chief)));
    }
    faults
}

/// One run, for a message.
fn name(fault: &Fault) -> String {
    let Point { phase: number, nth, text, .. } = &fault.at;
    let again = if *nth > 0 { format!(", {nth} times before") } else { String::new() };
    format!("{}, {text}{again}: {:?}", phase(*number), fault.act)
}

/// A step under ptrace.
struct Run {
    traced: Traced,
    said: Said,
    log: String,
}

fn run_step(site: &Site<'_>, fault: Option<&Fault>) -> Run {
    let mut log = tempfile::tempfile().unwrap();
    let mut command = site.step(&[]);
    let said = Said::of(&mut command);
    command.stderr(log.try_clone().unwrap());
    let traced = trace::run(&mut command, Watch::Marks, NOTHING, fault);
    Run { traced, said, log: contents(&mut log) }
}

fn contents(file: &mut File) -> String {
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

/// What a task said of its place and its limits; nothing, if it did not run.
fn report(text: &str) -> Option<String> {
    text.lines().any(|line| line.starts_with("ran ")).then(|| {
        let lines = text.lines().filter(|line| line.starts_with("place ") || line.starts_with("limit "));
        // The name that the step was given, of which the second is as good as the first.
        let lines = lines
            .map(without_base)
            .map(|line| (2..9).fold(line, |line, n| line.replace(&format!("step_0.{n}"), "step_0")));
        lines.collect::<Vec<_>>().join("\n")
    })
}

/// What differs, for a message.
fn difference(expected: &str, found: &str) -> String {
    let lines = |one: &str, other: &str| -> Vec<String> {
        one.lines().filter(|line| !other.lines().any(|theirs| theirs == *line)).map(str::to_owned).collect()
    };
    format!("{:?} instead of {:?}", lines(found, expected), lines(expected, found))
}

/// What becomes of directories of Slurm's that nobody has marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unmarked {
    /// There are none.
    Go,
    /// The daemon was killed before it could mark them.
    Stay,
}

/// What the janitor finds is removed, and then nothing is left; nothing that is not the step's was touched. Says whether there
/// was something to find.
fn clean_up(
    site: &Site<'_>,
    missing: Missing<'_>,
    said: &mut Said,
    log: &str,
    unmarked: Unmarked,
) -> Result<bool, String> {
    let left = site.left();
    if !left.is_empty() {
        let (traced, printed) = run_janitor(site, missing, None);
        let mut still = site.left();
        // Nobody may be in them.
        if unmarked == Unmarked::Stay && said.is_over(GONE_BY) && still.iter().all(|path| site.is_unmarked(path)) {
            site.scrub();
            still = site.left();
        }
        if traced.status != WaitStatus::Exited(traced.pid, 0) || !still.is_empty() {
            let status = traced.status;
            return Err(format!(
                "{still:?} are left after 'jobfence reap': {status:?}, {printed}\nbefore: {left:?}\n{log}"
            ));
        }
    }
    if !said.is_over(GONE_BY) {
        if let Some(straggler) = said.straggler() {
            let _ = kill(straggler, Signal::SIGKILL);
        }
        return Err(format!("a process of the step lives\n{log}"));
    }
    site.harm().map_or(Ok(!left.is_empty()), |harm| Err(format!("{harm}\n{log}")))
}

/// Whether a step was as it must be, of which one call failed or which died at one.
fn judge(site: &Site<'_>, run: Run, fault: &Fault, undisturbed: &str, warns: bool) -> Result<Verdict, String> {
    let Run { traced, mut said, log } = run;
    let missed = !traced.met;
    let report = report(said.text());
    let is_fenced = report.as_ref().is_none_or(|report| report == undisturbed);
    let dies = fault.act == Act::DieBefore || fault.act == Act::DieAfter;
    let hole = log.contains("WITHOUT a fence") || log.contains("runs without its");
    let told = log.lines().any(|line| line.starts_with("told: jobfence: ") || line.starts_with("error: jobfence: "));
    let mut wrong = None;
    let outcome = match (&report, traced.status) {
        _ if traced.hung => Err("hangs".to_owned()),
        (_, WaitStatus::Signaled(_, Signal::SIGKILL, _)) if dies && is_fenced => Ok(Outcome::Died),
        (_, WaitStatus::Exited(_, 0)) if dies && missed && is_fenced => Ok(Outcome::Fenced),
        (_, WaitStatus::Exited(_, 0)) if !dies => match &report {
            None if told => Ok(Outcome::Refused),
            None => Err("did not run, and nobody is told".to_owned()),
            Some(_) if hole && warns => Ok(Outcome::Hole),
            Some(_) if is_fenced => Ok(Outcome::Fenced),
            Some(report) => Err(format!("ran without all of its fence: {}", difference(undisturbed, report))),
        },
        (_, status) => Err(format!("{status:?}, {}", difference(undisturbed, report.as_deref().unwrap_or("nothing")))),
    };
    for sign in ["wrong: ", "internal error"] {
        if log.contains(sign) {
            wrong = Some(format!("{sign:?} in its log"));
        }
    }
    if !dies && !told && site.left().iter().any(|path| !is_watchers(path)) {
        wrong = Some("leaves something without a word".to_owned());
    }
    let unmarked = if dies { Unmarked::Stay } else { Unmarked::Go };
    let cleaned = clean_up(site, NOTHING, &mut said, &log, unmarked);
    let outcome = outcome.and_then(|outcome| wrong.map_or(Ok(outcome), Err));
    match (outcome, cleaned) {
        (Ok(outcome), Ok(left)) => Ok(Verdict { outcome, left, missed }),
        (Err(failure), Ok(_)) => Err(format!("{}: {failure}\n{log}", name(fault))),
        (Ok(_), Err(failure)) => Err(format!("{}: {failure}", name(fault))),
        (Err(failure), Err(other)) => Err(format!("{}: {failure}; {other}", name(fault))),
    }
}

/// What a step leaves to `jobfence hold`, if that runs: whose processes may be beside its daemon.
fn is_watchers(left: &Path) -> bool {
    left.parent().is_some_and(|above| above.ends_with("tracked"))
}

/// How many at once: each of them waits for the kernel for much of its time. What is left in Slurm's directories is looked for on the
/// whole host, so there is one site with them.
fn workers(settings: &Settings<'_>) -> usize {
    if settings.slurms.is_some() { 1 } else { 4 }
}

/// This thread and whoever it starts have one CPU: tracer and tracee work in turns, and to wake the other on another CPU that is idle takes
/// longer than most calls.
fn stay_on(worker: usize) {
    let all = sched_getaffinity(Pid::this()).unwrap();
    let ours: Vec<usize> = (0..CpuSet::count()).filter(|cpu| all.is_set(*cpu).unwrap()).collect();
    let mut one = CpuSet::new();
    one.set(ours[worker % ours.len()]).unwrap();
    sched_setaffinity(Pid::from_raw(0), &one).unwrap();
}

/// Does all of this in sites of their own, some at once.
fn in_parallel<'a>(
    stand_in: &'a StandIn,
    settings: &Settings<'_>,
    cases: &[Fault],
    work: impl Fn(&Site<'a>, &Fault) -> Result<Verdict, String> + Sync,
    done: impl Fn(&Fault, Result<Verdict, String>) + Sync,
) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for worker in 0..workers(settings) {
            let (next, work, done) = (&next, &work, &done);
            scope.spawn(move || {
                stay_on(worker);
                let name = format!("{}{worker}", settings.name);
                let site = Site::new(stand_in, &Settings { name: &name, ..*settings });
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut verdict = work(&site, case);
                    // How often the kernel is asked whether a process has gone depends on how busy the machine is.
                    for _ in 0..2 {
                        if matches!(&verdict, Ok(verdict) if verdict.missed) {
                            verdict = work(&site, case);
                        }
                    }
                    if verdict.is_err() {
                        site.scrub();
                    }
                    done(case, verdict);
                }
                // As if it were of the last one.
                if let (Some(wrong), Some(last)) = (site.finish(), cases.last()) {
                    done(last, Err(wrong));
                }
            });
        }
    });
}

/// The calls that undisturbed runs make each time, where and as busy as those are of which one fails.
fn recorded<'a>(
    stand_in: &'a StandIn,
    settings: &Settings<'_>,
    run: impl Fn(&Site<'a>) -> Vec<Point> + Sync,
) -> Vec<Point> {
    let workers = workers(settings);
    let runs = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let (runs, run) = (&runs, &run);
            scope.spawn(move || {
                stay_on(worker);
                let name = format!("{}{worker}", settings.name);
                let site = Site::new(stand_in, &Settings { name: &name, ..*settings });
                for _ in 0..RECORDINGS / workers {
                    let points = run(&site);
                    runs.lock().unwrap().push(points);
                }
                assert_eq!(site.finish(), None);
            });
        }
    });
    always_made(runs.into_inner().unwrap())
}

/// Where these tests can be; says so where not.
fn ready() -> Option<(tempfile::TempDir, StandIn)> {
    assert!(nix::unistd::geteuid().is_root(), "these tests need root; 'make check' skips them without");
    let temp = tempfile::tempdir().unwrap();
    let stand_in = StandIn::or_skip(temp.path())?;
    Some((temp, stand_in))
}

/// Undisturbed steps: their calls, and what their tasks say.
fn record(stand_in: &StandIn, settings: &Settings<'_>) -> (Vec<Point>, String) {
    let undisturbed = Mutex::new(None);
    let points = recorded(stand_in, settings, |site| {
        let mut run = run_step(site, None);
        assert_eq!(run.traced.status, WaitStatus::Exited(run.traced.pid, 0), "{}", run.log);
        let report = report(run.said.text()).expect("an undisturbed step does not run");
        assert!(report.contains("/task_0"), "{report}");
        assert!(!site.left().iter().any(|path| !is_watchers(path)), "{:?}", site.left());
        clean_up(site, NOTHING, &mut run.said, &run.log, Unmarked::Go).unwrap();
        assert_eq!(undisturbed.lock().unwrap().get_or_insert(report.clone()), &report);
        run.traced.points
    });
    (points, undisturbed.into_inner().unwrap().unwrap())
}

/// The base is the site's own, and so is Slurm's.
fn without_base(text: &str) -> String {
    let words = text.split('/').map(|word| if word.contains("jobfence-test-") { "BASE" } else { word });
    words.collect::<Vec<_>>().join("/")
}

/// What fails in Slurm's directories: the calls in them, and those about no file that come after one of these. The others fail in other
/// tests.
fn errors_in_theirs(points: &[Point], first: usize, can_be_chief: impl Fn(&Point) -> bool) -> Vec<Fault> {
    let mut points = points.to_vec();
    let mut is_theirs = false;
    points.retain(|at| {
        if !at.text.ends_with("()") {
            is_theirs = calls::is_theirs(&at.text);
        }
        is_theirs
    });
    errors_but(calls::lies_in_theirs, &points, first, can_be_chief)
}

fn steps(kind: &'static str, settings: &Settings<'_>, faults: impl Fn(&[Point]) -> Vec<Fault>) {
    let Some((_temp, stand_in)) = ready() else { return };
    let _others = settings.slurms.is_none().then(common::beside_others);
    let (points, undisturbed) = record(&stand_in, settings);
    let table = Mutex::new(Table::default());
    let faults = faults(&points);
    assert!(!faults.is_empty() || is_slice());
    for phase in 1..5 {
        let count = points.iter().filter(|point| point.phase == phase).count();
        assert!(count > 0, "no calls in {}", self::phase(phase));
        table.lock().unwrap().points(phase, kind, count);
    }
    let warns = settings.on_error == "warn";
    let work = |site: &Site<'_>, fault: &Fault| {
        let run = run_step(site, Some(fault));
        judge(site, run, fault, &undisturbed, warns)
    };
    let done = |fault: &Fault, verdict| {
        table.lock().unwrap_or_else(PoisonError::into_inner).add(fault, kind, verdict);
    };
    in_parallel(&stand_in, settings, &faults, work, done);
    table.into_inner().unwrap().conclude();
}

/// The bystander is another user's.
#[test]
fn a_call_that_fails_refuses_the_step_or_is_mended() {
    let settings = Settings { name: "fail", on_error: "fail", bystander: (uid() + 1, JOB), slurms: None };
    steps("fails, OnError=fail", &settings, |points| errors(points, 0));
}

/// The bystander is another step of the job.
#[test]
fn a_call_that_fails_under_warn_leaves_no_hole_that_is_not_said() {
    let settings = Settings { name: "warn", on_error: "warn", bystander: (uid(), JOB), slurms: None };
    steps("fails, OnError=warn", &settings, |points| errors(points, 1));
}

/// The bystander is another job of the user's.
#[test]
fn a_daemon_that_dies_leaves_nothing_that_the_janitor_does_not_remove() {
    let settings = Settings { name: "dies", on_error: "fail", bystander: (uid(), JOB + 1), slurms: None };
    steps("dies", &settings, deaths);
}

/// What a step daemon leaves that was killed while a process of its step lived.
fn leavings(site: &Site<'_>) -> Said {
    let mut command = site.step(&["hold"]);
    let mut said = Said::of(&mut command);
    command.stdin(Stdio::piped()).stderr(Stdio::null());
    let mut daemon = command.spawn().unwrap();
    drop(command);
    assert!(said.says("holds", GONE_BY), "{}", said.text());
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    said
}

/// A janitor under ptrace, and what it printed.
fn run_janitor(site: &Site<'_>, missing: Missing<'_>, fault: Option<&Fault>) -> (Traced, String) {
    let mut printed = tempfile::tempfile().unwrap();
    let mut reap = site.reap();
    reap.stdout(printed.try_clone().unwrap()).stderr(printed.try_clone().unwrap());
    let configuration = site.configuration.to_str().unwrap();
    let traced = trace::run(&mut reap, Watch::Since(configuration), missing, fault);
    (traced, contents(&mut printed))
}

/// Whether a janitor was as it must be, of which one call failed or which died at one; and the one after it.
fn judge_janitor(site: &Site<'_>, missing: Missing<'_>, fault: &Fault) -> Result<Verdict, String> {
    let mut said = leavings(site);
    let (traced, printed) = run_janitor(site, missing, Some(fault));
    let missed = !traced.met;
    let left = !site.left().is_empty();
    let dies = fault.act == Act::DieBefore || fault.act == Act::DieAfter;
    let outcome = match traced.status {
        _ if traced.hung => Err("hangs".to_owned()),
        WaitStatus::Signaled(_, Signal::SIGKILL, _) if dies => Ok(Outcome::Died),
        WaitStatus::Exited(_, 0) if left => Err("leaves something and says nothing of it".to_owned()),
        WaitStatus::Exited(_, 0) if !dies || missed => Ok(Outcome::Reaped),
        WaitStatus::Exited(_, 1) if !dies && printed.contains("jobfence: ") => Ok(Outcome::Failed),
        status => Err(format!("{status:?}")),
    };
    let outcome = outcome.and_then(|outcome| match printed.contains("panicked") {
        true => Err("panics".to_owned()),
        false => Ok(outcome),
    });
    let cleaned = clean_up(site, missing, &mut said, &printed, Unmarked::Go);
    let name = name(fault);
    match (outcome, cleaned) {
        (Ok(outcome), Ok(_)) => Ok(Verdict { outcome, left, missed }),
        (Err(failure), Ok(_)) => Err(format!("{name}: {failure}\n{printed}")),
        (Ok(_), Err(failure)) => Err(format!("{name}: {failure}")),
        (Err(failure), Err(other)) => Err(format!("{name}: {failure}; {other}")),
    }
}

fn janitor(name: &str, missing: Missing<'_>, slurms: Option<Version>) {
    let Some((_temp, stand_in)) = ready() else { return };
    let _others = slurms.is_none().then(common::beside_others);
    // Somebody in the same job's directory would hide that it stays.
    let bystander = if slurms.is_some() { (uid() + 1, JOB + 1) } else { (uid(), JOB) };
    let settings = Settings { name, on_error: "fail", bystander, slurms };
    let record = |site: &Site<'_>| {
        let mut said = leavings(site);
        let (traced, printed) = run_janitor(site, missing, None);
        assert_eq!(traced.status, WaitStatus::Exited(traced.pid, 0), "{printed}");
        assert_eq!(clean_up(site, missing, &mut said, &printed, Unmarked::Go), Ok(false));
        traced.points
    };
    // How often it looks again, until killed processes are gone, is chance: other runs may never make these calls.
    let points = (0..5).map(|_| recorded(&stand_in, &settings, record)).min_by_key(Vec::len).unwrap();
    let table = Mutex::new(Table::default());
    let fail = if slurms.is_some() { errors_in_theirs(&points, 0, |_| true) } else { errors(&points, 0) };
    for (kind, faults) in [("fails", fail), ("dies", deaths(&points))] {
        assert!(!faults.is_empty() || is_slice());
        table.lock().unwrap().points(trace::SINCE, kind, points.len());
        let done = |fault: &Fault, verdict| {
            table.lock().unwrap_or_else(PoisonError::into_inner).add(fault, kind, verdict);
        };
        in_parallel(&stand_in, &settings, &faults, |site, fault| judge_janitor(site, missing, fault), done);
    }
    table.into_inner().unwrap().conclude();
}

#[test]
fn a_janitor_that_fails_or_dies_leaves_the_rest_to_the_next() {
    janitor("janitor", NOTHING, None);
}

/// It freezes the step then, and sends signals.
#[test]
fn a_janitor_without_cgroup_kill_that_fails_or_dies_leaves_the_rest_to_the_next() {
    janitor("oldjanitor", Missing(&["cgroup.kill"]), None);
}

/// Where the scheduler's own directories of a step hold its processes: all of the above.
fn in_slurms(version: Version, name: [&str; 3]) {
    let layout = Layout::read(&Dir::open("/proc").unwrap(), Path::new("/sys/fs/cgroup")).unwrap();
    if site::slurms_own(version, &layout, "").is_empty() {
        return common::skip("no hierarchy of that version in which Slurm has directories");
    }
    let _alone = common::alone();
    let slurms = Some(version);
    for (kind, on_error, first) in [("fails, OnError=fail", "fail", 2), ("fails, OnError=warn", "warn", 3)] {
        let settings = Settings { name: name[0], on_error, bystander: (uid(), JOB), slurms };
        // At a step's end OnError makes no difference.
        let is_told_apart = |at: &Point| on_error == "fail" || ["begin", "attach"].contains(&phase(at.phase));
        steps(kind, &settings, |points| errors_in_theirs(points, first, is_told_apart));
    }
    let settings = Settings { name: name[1], on_error: "fail", bystander: (uid(), JOB), slurms };
    steps("dies", &settings, deaths);
    janitor(name[2], NOTHING, slurms);
}

#[test]
fn in_slurms_own_directories_on_v1_it_is_the_same() {
    in_slurms(Version::V1, ["v1fail", "v1dies", "v1janitor"]);
}

#[test]
fn in_slurms_own_directories_on_v2_it_is_the_same() {
    in_slurms(Version::V2, ["v2fail", "v2dies", "v2janitor"]);
}
