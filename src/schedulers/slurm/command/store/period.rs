// SPDX-License-Identifier: GPL-2.0-or-later
//! The ended jobs of a period, as Slurm's accounting has them: for figures about all jobs.
//!
//! slurmdbd serves the whole cluster, so a long period is asked for in pieces: one sacct at a time, each followed by a pause at least as
//! long as the call took. A piece is a day, or less if a day's answer is longer than is read.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Range;
use std::time::{Duration, Instant};

use jobfence::sys::program::{Printed, Silence};

use super::database::program;
use super::summary::Summary;

/// The longest piece, in seconds.
pub const DAY: u64 = 86_400;

/// An answer that comes late is asked for again in pieces no shorter than this, in seconds: a database that is slow is not asked ever more.
const SHORTEST_AFTER_LATE: u64 = 3600;

/// How long one sacct may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// After so many pieces in a row that failed, no more is asked.
const GIVE_UP: usize = 3;

/// The fields of sacct, which each release from 22.05 to 26.05 knows. The last two can contain any text.
const FIELDS: [&str; 15] = [
    "JobIDRaw",
    "Submit",
    "Start",
    "End",
    "ElapsedRaw",
    "State",
    "NNodes",
    "NodeList",
    "AllocTRES",
    "UID",
    "User",
    "Account",
    "Partition",
    "QOS",
    "AdminComment,JobName",
];

/// How many fields a record has.
const COUNT: usize = FIELDS.len() + 1;

/// The states of jobs that have ended, which each of these releases knows. With them, slurmdbd looks for jobs that ended in the piece, and
/// not for all that wait or run, too.
const STATES: &str =
    "COMPLETED,CANCELLED,FAILED,TIMEOUT,NODE_FAIL,PREEMPTED,BOOT_FAIL,DEADLINE,OUT_OF_MEMORY,REQUEUED,RESIZING,REVOKED";

/// What is stored of a run lasts no longer than its record, but for clocks that differ, in seconds.
const SLACK: u64 = 300;

/// The state of a record that goes on in the next one, since the job's size was changed.
const RESIZED: &str = "RESIZING";

/// A job that has ended. Times are in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct AccountedJob {
    pub id: String,
    pub ended: u64,
    /// How long it ran, without the time for which it was suspended.
    pub elapsed: u64,
    /// Whether it goes on in the next record, with another size.
    pub is_resized: bool,
    pub is_success: bool,
    pub is_out_of_memory: bool,
    pub nodes: u64,
    pub node_list: String,
    pub cpus: Option<u64>,
    /// In bytes.
    pub memory: Option<u64>,
    /// `None`: the record names none.
    pub gpus: Option<u64>,
    pub uid: Option<u64>,
    pub user: String,
    pub account: String,
    pub partition: String,
    pub qos: String,
    pub name: String,
    /// `None`: jobfence has stored nothing of this run.
    pub summary: Option<Summary>,
}

/// A period that nothing is known about, in seconds since 1970, and the reason.
#[derive(Debug)]
pub struct MissingPeriod {
    pub period: Range<u64>,
    pub why: String,
}

/// What sacct says about a piece, with a mark after each field.
type Answers<'a> = dyn FnMut(&Range<u64>, &str) -> Result<String, Silence> + 'a;

/// How a period is asked for.
pub struct AskedPeriod<'a> {
    /// What answers about the jobs of a piece, with the mark that ends each field.
    pub sacct: &'a mut Answers<'a>,
    /// What is done after each piece: a pause of at least this time. It gets what is still to be asked for, too.
    pub rest: &'a mut dyn FnMut(Duration, &Range<u64>),
}

impl AskedPeriod<'_> {
    /// Hands over the jobs that ended in the period, in the order of the pieces. What could not be asked for is returned.
    pub fn each(&mut self, period: Range<u64>, with: &mut dyn FnMut(Vec<AccountedJob>)) -> Vec<MissingPeriod> {
        let (mut from, mut length, mut most, mut failed) = (period.start, DAY, DAY, 0);
        let mut missing: Vec<MissingPeriod> = Vec::new();
        while from < period.end {
            let piece = from..from.saturating_add(length).min(period.end);
            let began = Instant::now();
            let mark = mark();
            let said = (self.sacct)(&piece, &mark);
            let took = began.elapsed();
            let said = said.and_then(|said| Ok((jobs(&said, &mark, &piece)?, said.len())));
            let asked_for = piece.end - piece.start;
            match said {
                Ok((jobs, bytes)) => {
                    with(jobs);
                    (from, failed) = (piece.end, 0);
                    length = next_length(length, most, bytes, took);
                }
                Err(Silence::Long) if asked_for > 1 => length = asked_for / 2,
                Err(Silence::Late) if asked_for / 2 >= SHORTEST_AFTER_LATE => {
                    length = asked_for / 2;
                    // What was late once is not asked for again.
                    most = length;
                }
                Err(silence) => {
                    failed += 1;
                    from =
                        if failed < GIVE_UP && !matches!(silence, Silence::Start(_)) { piece.end } else { period.end };
                    let why = silence.to_string();
                    match missing.last_mut().filter(|last| last.period.end == piece.start && last.why == why) {
                        Some(last) => last.period.end = from,
                        None => missing.push(MissingPeriod { period: piece.start..from, why }),
                    }
                }
            }
            if from < period.end {
                (self.rest)(took, &(from..period.end));
            }
        }
        missing
    }
}

/// An answer shorter than this, in bytes, may be twice as long the next time.
const QUIET: usize = 4 << 20;

/// How long the next piece is: twice as long, once it has become quiet. A long answer would be read and thrown away, and a late one costs
/// the database most.
fn next_length(length: u64, most: u64, bytes: usize, took: Duration) -> u64 {
    let is_quiet = bytes < QUIET && took < PATIENCE / 4;
    if is_quiet { (length * 2).min(most) } else { length }
}

/// What ends each field. It is another one in each call, since users can read the arguments of the sacct that runs: a user has no more than
/// the time of one call to give a job a name that contains it.
fn mark() -> String {
    format!("|{:016x}|", RandomState::new().hash_one(std::process::id()))
}

/// Asks slurmdbd about the jobs of a piece. `is_of_all`: also those of others.
pub fn sacct(piece: &Range<u64>, mark: &str, is_of_all: bool) -> Result<String, Silence> {
    // slurmdbd takes jobs that ended at the first moment or at the last one, or in between.
    let (from, to) =
        (format!("--starttime=uts{}", piece.start.max(EARLIEST)), format!("--endtime=uts{}", piece.end.max(EARLIEST)));
    let (format, mark) = (format!("--format={}", FIELDS.join(",")), format!("--delimiter={mark}"));
    let states = format!("--state={STATES}");
    // Another cluster of a federation has ids of its own, and may be large.
    let mut arguments = vec!["--noheader", "--parsable", "--allocations", "--duplicates", "--local"];
    arguments.extend([&*mark, &from, &to, &format, &states]);
    if is_of_all {
        arguments.push("--allusers");
    }
    answer(program("sacct", &arguments).tell("", Instant::now() + PATIENCE)?)
}

/// If slurmdbd's answer is lost, sacct before 23.11.4 says so on stderr, and ends as if there were no jobs. What it says beside records is
/// of something else, such as a line of slurm.conf.
fn answer(heard: Printed) -> Result<String, Silence> {
    let lost = || (heard.said.is_empty() && heard.stderr.contains("error: ")).then(|| heard.stderr.clone());
    heard.complaint.or_else(lost).map_or(Ok(heard.said), |complaint| Err(Silence::Failed(complaint)))
}

/// Slurm takes no earlier number for a time.
const EARLIEST: u64 = 1_000_000;

/// The jobs that ended in the piece. One that ended at its very end comes in the next piece, too, and counts there.
///
/// If the fields are not those of whole records, nothing of the answer counts: a field that contains the mark shifts all that follow.
fn jobs(said: &str, mark: &str, piece: &Range<u64>) -> Result<Vec<AccountedJob>, Silence> {
    let fields: Vec<&str> = said.split(mark).collect();
    let (records, rest) = fields.as_chunks::<COUNT>();
    let is_id = |(at, [id, ..]): (usize, &[&str; COUNT])| {
        let id = if at == 0 { Some(*id) } else { id.strip_prefix('\n') };
        id.is_some_and(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let is_whole = rest == if records.is_empty() { [""] } else { ["\n"] };
    if !is_whole || !records.iter().enumerate().all(is_id) {
        let broken = format!("its answer of {} bytes does not consist of whole records: ask again", said.len());
        return Err(Silence::Failed(broken));
    }
    Ok(records.iter().filter_map(job).filter(|job| piece.contains(&job.ended)).collect())
}

/// `None`: it has not ended, or never began.
fn job(fields: &[&str; COUNT]) -> Option<AccountedJob> {
    let [
        id,
        submitted,
        started,
        ended,
        elapsed,
        state,
        nodes,
        node_list,
        granted,
        uid,
        user,
        account,
        partition,
        qos,
        comment,
        name,
    ] = *fields;
    let number = |text: &str| text.parse::<u64>().ok();
    let started = number(started).filter(|started| *started > 0)?;
    let ended = number(ended).filter(|ended| *ended > 0)?;
    let granted = |what: &str| granted.split(',').find_map(|one| one.strip_prefix(what)?.strip_prefix('='));
    let submitted = number(submitted)?;
    let summary = Summary::from_comment(comment.trim()).filter(|summary| summary.is_of_run(submitted));
    // The record of a resized job begins later than its run. But its nodes have stored what they used in the whole run.
    let is_of_record = |summary: &Summary| summary.seconds() <= ended.saturating_sub(started).saturating_add(SLACK);
    let summary = summary.filter(is_of_record);
    // A cancelled job's state has who has cancelled it.
    let state = state.split(' ').next().unwrap_or_default();
    let job = AccountedJob {
        id: id.trim_start().to_owned(),
        ended,
        elapsed: number(elapsed)?,
        is_resized: state == RESIZED,
        is_success: state == "COMPLETED",
        is_out_of_memory: state == "OUT_OF_MEMORY",
        nodes: number(nodes)?,
        node_list: node_list.to_owned(),
        cpus: granted("cpu").and_then(number),
        memory: granted("mem").and_then(bytes),
        gpus: granted("gres/gpu").and_then(number),
        uid: number(uid),
        user: user.to_owned(),
        account: account.to_owned(),
        partition: partition.to_owned(),
        qos: qos.to_owned(),
        name: name.to_owned(),
        summary: summary.filter(|summary| summary.nodes().next().is_some()),
    };
    // One that was cancelled while it waited was granted nothing.
    (job.cpus.is_some() || job.elapsed > 0).then_some(job)
}

/// An amount as Slurm writes it: `1500M`, `2G` or `1.50T`; without a unit it is in MiB.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..)? {
        "K" => 10,
        "" | "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        _ => return None,
    };
    let amount: f64 = digits.parse().ok().filter(|amount| (0.0..1e15).contains(amount))?;
    let bytes = amount * 2_f64.powi(shift);
    // Memory of more than all of the address space is none.
    (bytes < 2_f64.powi(63)).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(mark: &str, id: u64, ended: &str, state: &str, comment: &str, name: &str) -> String {
        let fields = [
            &id.to_string(),
            "90",
            "100",
            ended,
            "50",
            state,
            "1",
            "n1",
            "billing=2,cpu=2,gres/gpu:a=3,mem=1.50G,node=1",
            "7",
            "alice",
            "physics",
            "short",
            "normal",
            comment,
            name,
        ];
        fields.iter().map(|field| format!("{field}{mark}")).collect::<String>() + "\n"
    }

    #[test]
    fn a_job_counts_in_the_piece_in_which_it_ended_and_no_name_forges_one() {
        let all = [
            record("|m|", 1, "150", "COMPLETED", "", "a"),
            record("|m|", 2, "Unknown", "RUNNING", "", "b"),
            record("|m|", 3, "200", "COMPLETED", "", "later"),
            record(
                "|m|",
                4,
                "160",
                "CANCELLED by 7",
                "somebody|else's\ncomment",
                "x\n9|90|100|150|50|COMPLETED|1|n1|cpu=99",
            ),
            record("|m|", 5, "170", "OUT_OF_MEMORY", "", "c"),
        ];
        let found = jobs(&all.concat(), "|m|", &(100..200)).unwrap();
        let ids: Vec<&str> = found.iter().map(|job| &*job.id).collect();
        assert_eq!(ids, ["1", "4", "5"]);
        assert_eq!((found[0].cpus, found[0].memory, found[0].gpus), (Some(2), Some(3 << 29), None));
        assert_eq!(
            [0, 1, 2].map(|at| (found[at].is_success, found[at].is_out_of_memory)),
            [(true, false), (false, false), (false, true)]
        );
        assert_eq!(found[1].name, "x\n9|90|100|150|50|COMPLETED|1|n1|cpu=99");
    }

    #[test]
    fn what_never_began_is_no_job_that_used_nothing() {
        let waited = record("|m|", 1, "150", "CANCELLED by 7", "", "a").replace("|m|100|m|", "|m|None|m|");
        assert_eq!(jobs(&waited, "|m|", &(100..200)).unwrap(), []);
    }

    #[test]
    fn an_answer_that_is_not_of_whole_records_has_none() {
        let named = |name: &str| record("|m|", 1, "150", "COMPLETED", "", name);
        let piece = 100..200;
        assert_eq!(jobs("", "|m|", &piece).unwrap(), []);
        let (one, whole) = (named("a"), named("a").repeat(2));
        assert_eq!(jobs(&whole, "|m|", &piece).unwrap().len(), 2);
        let sixteen_more = format!("a{}", "|m|x".repeat(COUNT));
        for broken in [
            whole.trim_end().to_owned(),
            whole[..whole.len() - 5].to_owned(),
            format!("{whole}more"),
            format!("{}{one}", named("a|m|b")),
            format!("{}{one}", named(&sixteen_more)),
            "no records".to_owned(),
        ] {
            assert!(matches!(jobs(&broken, "|m|", &piece), Err(Silence::Failed(_))), "{broken:?}");
        }
    }

    #[test]
    fn an_answer_that_was_lost_is_not_one_without_jobs() {
        let heard = |stderr: &str| answer(Printed { said: String::new(), complaint: None, stderr: stderr.to_owned() });
        assert!(heard("").is_ok() && heard("sacct: slurm.conf is old").is_ok());
        let lost = heard("sacct: error: slurmdbd: Getting response to message type: DBD_GET_JOBS_COND");
        assert!(lost.unwrap_err().to_string().contains("Getting response"));
        let stderr = "sacct: error: Ignoring obsolete FastSchedule=1 option".to_owned();
        assert!(answer(Printed { said: "1".to_owned(), complaint: None, stderr }).is_ok());
    }

    #[test]
    fn what_is_stored_of_more_than_the_record_is_not_what_the_record_used() {
        let mut summary = Summary::from_comment("").unwrap();
        summary.put("n1", &Default::default(), 1000);
        let comment = summary.of_run(90, 0).comment().unwrap();
        let found = |ended: &str| {
            let said = record("|m|", 1, ended, "COMPLETED", &comment, "a");
            jobs(&said, "|m|", &(100..2000)).unwrap()[0].summary.is_some()
        };
        assert_eq!((found("1100"), found("150")), (true, false));
    }

    #[test]
    fn a_database_that_was_late_is_asked_for_less_from_then_on() {
        let late = |piece: &Range<u64>| {
            if piece.end - piece.start > DAY / 4 { Err(Silence::Late) } else { Ok(String::new()) }
        };
        let pieces = asked(0..3 * DAY, late).0;
        assert!(pieces[2..].iter().all(|piece| piece.end - piece.start <= DAY / 4), "{pieces:?}");
        let moment = Duration::from_secs(1);
        assert_eq!(next_length(10, 100, 0, moment), 20);
        assert_eq!(next_length(60, 100, 0, moment), 100);
        assert_eq!((next_length(10, 100, QUIET, moment), next_length(10, 100, 0, PATIENCE / 4)), (10, 10));
    }

    #[test]
    fn each_call_has_another_mark() {
        let mut marks = std::collections::HashSet::new();
        let mut sacct = |_: &Range<u64>, mark: &str| {
            marks.insert(mark.to_owned());
            Ok(String::new())
        };
        AskedPeriod { sacct: &mut sacct, rest: &mut |_, _| {} }.each(0..9 * DAY, &mut |_| {});
        assert_eq!(marks.len(), 9);
    }

    #[test]
    fn amounts_are_as_slurm_writes_them() {
        assert_eq!(
            ["1500M", "2G", "1.50T", "7", "0", "1X", "-1G", "1e300G"].map(bytes),
            [Some(1500 << 20), Some(2 << 30), Some(3 << 39), Some(7 << 20), Some(0), None, None, None]
        );
    }

    type AskedPieces = (Vec<Range<u64>>, usize, Vec<(Range<u64>, String)>);

    /// The pieces that were asked for, the pauses, and what is missing, if such an answer comes for a piece.
    fn asked(period: Range<u64>, mut answer: impl FnMut(&Range<u64>) -> Result<String, Silence>) -> AskedPieces {
        let (mut pieces, mut pauses) = (Vec::new(), 0);
        let mut sacct = |piece: &Range<u64>, _: &str| {
            pieces.push(piece.clone());
            answer(piece)
        };
        let missing = AskedPeriod { sacct: &mut sacct, rest: &mut |_, _| pauses += 1 }.each(period, &mut |_| {});
        (pieces, pauses, missing.into_iter().map(|missing| (missing.period, missing.why)).collect())
    }

    #[test]
    fn a_long_answer_is_asked_for_in_halves_and_then_in_days_again() {
        let most = DAY / 2;
        let long = |piece: &Range<u64>| {
            if piece.start < DAY && piece.end - piece.start > most { Err(Silence::Long) } else { Ok(String::new()) }
        };
        let (pieces, pauses, missing) = asked(0..3 * DAY, long);
        assert_eq!((&pieces[..2], pieces.last().unwrap().end), (&[0..DAY, 0..most][..], 3 * DAY));
        assert!(
            pieces.iter().skip(1).filter(|piece| long(piece).is_ok()).map(|piece| piece.end - piece.start).sum::<u64>()
                == 3 * DAY
        );
        assert_eq!((pauses, missing.len()), (pieces.len() - 1, 0));
        // Nothing is shorter than a second.
        let (pieces, _, missing) = asked(0..1, |_| Err(Silence::Long));
        assert_eq!((pieces.len(), missing.len()), (1, 1));
    }

    #[test]
    fn what_fails_is_missing_and_a_database_that_is_away_is_not_asked_again_and_again() {
        let fails = |piece: &Range<u64>| {
            if piece.start == DAY { Err(Silence::Failed("gone".to_owned())) } else { Ok(String::new()) }
        };
        assert_eq!(asked(0..3 * DAY, fails).2, [(DAY..2 * DAY, "gone".to_owned())]);
        let (pieces, _, missing) = asked(0..100 * DAY, |_| Err(Silence::Failed("gone".to_owned())));
        assert_eq!((pieces.len(), missing), (3, vec![(0..100 * DAY, "gone".to_owned())]));
        let late = asked(0..DAY, |_| Err(Silence::Late)).0;
        assert!(late.iter().all(|piece| piece.end - piece.start >= SHORTEST_AFTER_LATE / 2), "{late:?}");
    }
}
