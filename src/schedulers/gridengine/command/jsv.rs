// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence jsv`: the job submission verifier of a Grid Engine cluster, by the protocol of jsv_script_interface(3).
//!
//! It notes the job's requests of CPUs, memory and GPUs in the job's environment, since execd tells its shepherd only of
//! those that a queue can limit. And it refuses jobs with requests in which no job can run.

mod theirs;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use jobfence::bytes::mebibytes;
use jobfence::config::{Config, Loaded, SlotRequest};
use jobfence::error::Error;
use jobfence::requests::{self, Requests};
use jobfence::schedulers::gridengine::amount::{bytes, number};
use jobfence::schedulers::gridengine::spool::REQUESTED;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::command::{Failure, ignore_sigpipe};
use crate::configured::Configured;
use theirs::{Decision, OtherJsv};

/// The least request of memory, in bytes. Less is a mistake, such as a forgotten unit.
const LEAST: u64 = 1 << 20;
/// The parameter with a job's hard requests.
const REQUESTS_OF_JOB: &str = "l_hard";
/// The most bytes in a line of an answer. qmaster reads a line into 10,000, and does not look for its end.
const LONGEST: usize = 4096;
/// How long to wait for a line behind BEGIN, in milliseconds. A forged BEGIN is followed much sooner. Each submission waits this long.
const FOLLOWS_WITHIN: u8 = 10;

#[derive(Args)]
pub struct JsvOptions {
    #[command(flatten)]
    configured: Configured,
    /// How long the other JSV may be silent, from 1 to 3600
    ///
    /// It must be less than jsv_timeout of qmaster_params (10 by default), after which qmaster itself gives up.
    #[arg(long, value_name = "SECONDS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=3600))]
    timeout: u32,
    /// Another JSV, with its arguments: it is asked first, and what it says is handed on
    #[arg(last = true, value_name = "JSV")]
    other: Vec<OsString>,
}

/// Answers until qmaster or qsub has no more questions.
///
/// Nothing is written to stderr: qmaster denies a job for any line there (`jsv_do_communication` of `sge_jsv_script.c`).
pub fn jsv(options: &JsvOptions) -> Result<ExitCode, Failure> {
    // A configuration with mistakes stops no submission: the hosts refuse the jobs, and say why.
    let wanted = || match options.configured.load() {
        Ok(loaded) => Ok(CountedRequests::from_config(&loaded)),
        Err(error) => Err(error.to_string()),
    };
    // The standard library's buffer does not show what it has read ahead.
    let input = BufReader::new(File::from(io::stdin().as_fd().try_clone_to_owned()?));
    ignore_sigpipe();
    let patience = Duration::from_secs(options.timeout.into());
    let mut other = (!options.other.is_empty()).then(|| OtherJsv::new(options.other.clone(), patience));
    let is_heard = verify(wanted, is_followed, other.as_mut(), input, io::stdout().lock()).is_ok();
    Ok(if is_heard { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether more lines come, though qmaster or qsub waits for the answer behind a real BEGIN.
fn is_followed(questions: &mut BufReader<File>) -> bool {
    if !questions.buffer().is_empty() {
        return true;
    }
    let mut fds = [PollFd::new(questions.get_ref().as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut fds, PollTimeout::from(FOLLOWS_WITHIN)), Ok(1..))
        && questions.fill_buf().is_ok_and(|more| !more.is_empty())
}

/// The requests that are noted.
#[derive(Default)]
struct CountedRequests {
    cpus: Vec<SlotRequest>,
    memory: Vec<SlotRequest>,
    gpus: Vec<SlotRequest>,
}

impl CountedRequests {
    /// The requests of all sections: which of them hold for a job is known only on its host.
    fn from_config(loaded: &Loaded) -> Self {
        let of_sections = loaded.one_by_one().flat_map(|candidate| candidate.config.slot_cpus);
        let Config { slot_cpus, slot_memory, slot_gpus, .. } = loaded.config.clone();
        Self { cpus: slot_cpus.into_iter().chain(of_sections).collect(), memory: slot_memory, gpus: slot_gpus }
    }
}

/// What was heard about a job.
#[derive(Default)]
struct Asked {
    /// The requests that count, each as the user wrote it.
    cpus: BTreeMap<String, String>,
    memory: BTreeMap<String, String>,
    gpus: BTreeMap<String, String>,
    /// All hard requests, in one line.
    requests: String,
    /// Why it is not known which requests count. Then each request with an amount is noted, and the host takes those that count there.
    unknown: Option<String>,
    /// The mistakes in variables by which the user asks for lower limits.
    refused: BTreeMap<String, Error>,
    /// The lines about the job, kept for another JSV.
    lines: Vec<Vec<u8>>,
    /// The parameters that came: each comes once.
    parameters: BTreeSet<String>,
    /// Whether a newline in one of the user's values has made a line of the protocol.
    is_forged: bool,
}

impl Asked {
    /// Hears one line about the job. Values are not escaped, so a user can have forged any line behind a value.
    fn hear(&mut self, line: &str, wanted: impl FnMut() -> Result<CountedRequests, String>) {
        let mut words = line.splitn(3, ' ');
        match (words.next().unwrap_or_default(), words.next(), words.next()) {
            ("PARAM", Some(name), value) => {
                self.is_forged |= !self.parameters.insert(name.to_owned());
                self.hear_parameter(name, value, wanted);
            }
            // A later value does not mend a wrong one: one of the two lines is forged.
            ("ENV", Some("ADD"), Some(variable)) if self.refused.is_empty() => self.hear_variable(variable),
            ("ENV", ..) => {}
            _ => self.is_forged = true,
        }
    }

    /// Hears a line of another JSV: the last value counts.
    fn hear_other(&mut self, line: &str, wanted: impl FnMut() -> Result<CountedRequests, String>) {
        let mut words = line.splitn(3, ' ');
        match (words.next().unwrap_or_default(), words.next(), words.next()) {
            ("PARAM", Some(name), value) => self.hear_parameter(name, value, wanted),
            ("ENV", Some("ADD" | "MOD"), Some(variable)) => self.hear_variable(variable),
            ("ENV", Some("DEL"), Some(variable)) => drop(self.refused.remove(variable)),
            _ => {}
        }
    }

    fn hear_parameter(
        &mut self,
        name: &str,
        value: Option<&str>,
        mut wanted: impl FnMut() -> Result<CountedRequests, String>,
    ) {
        if name != REQUESTS_OF_JOB {
            return;
        }
        let list = value.unwrap_or_default();
        match wanted() {
            Ok(wanted) => {
                let these = |these: &[SlotRequest]| of(list, |name, _| these.iter().any(|one| one.name == name));
                self.cpus = these(&wanted.cpus);
                self.memory = these(&wanted.memory);
                self.gpus = these(&wanted.gpus);
            }
            Err(why) => {
                self.memory = of(list, |_, amount| bytes(amount).is_some());
                self.unknown = Some(why);
            }
        }
        self.requests = list.to_owned();
    }

    fn hear_variable(&mut self, variable: &str) {
        let (name, value) = variable.split_once(' ').unwrap_or((variable, ""));
        let known = requests::everywhere().find(|request| request.variable() == name && !value.is_empty());
        match known.and_then(|request| request.read(name, value.as_bytes(), &mut Requests::default()).err()) {
            Some(error) => drop(self.refused.insert(name.to_owned(), error)),
            None => drop(self.refused.remove(name)),
        }
    }
}

/// Answers the questions. `wanted` says for each job anew which requests are noted; `is_followed` says whether a line follows BEGIN.
fn verify<Q: BufRead>(
    mut wanted: impl FnMut() -> Result<CountedRequests, String>,
    mut is_followed: impl FnMut(&mut Q) -> bool,
    mut other: Option<&mut OtherJsv>,
    mut questions: Q,
    mut answers: impl Write,
) -> io::Result<()> {
    let mut asked = None;
    let mut line = Vec::new();
    loop {
        line.clear();
        if questions.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        // A user's variables need not be UTF-8, and qrsh puts bytes of 0xff into one.
        match (String::from_utf8_lossy(&line).trim_end_matches('\n'), &mut asked) {
            ("QUIT", None) => return Ok(()),
            // A JSV gets the variables only if it asks for them.
            ("START", None) => {
                asked = Some(Asked::default());
                writeln!(answers, "SEND ENV\nSTARTED")?;
            }
            ("BEGIN", Some(job)) => {
                job.is_forged |= is_followed(&mut questions);
                let rejected = match &mut other {
                    Some(other) if !job.is_forged => ask_other(other, job, &mut wanted, &mut answers)?,
                    _ => None,
                };
                match rejected {
                    Some(line) => answers.write_all(&[&line[..], b"\n"].concat())?,
                    None => verdict(job).iter().try_for_each(|answer| writeln!(answers, "{answer}"))?,
                }
                asked = None;
            }
            (text, Some(job)) => {
                job.hear(text, &mut wanted);
                if other.is_some() {
                    job.lines.push(line.strip_suffix(b"\n").unwrap_or(&line).to_vec());
                }
            }
            // A line behind a forged BEGIN.
            (_, None) => {}
        }
        answers.flush()?;
    }
}

/// Asks the other JSV first. Its changes become the job's requests. `Some`: the line by which it rejects the job.
fn ask_other(
    other: &mut OtherJsv,
    job: &mut Asked,
    mut wanted: impl FnMut() -> Result<CountedRequests, String>,
    answers: &mut impl Write,
) -> io::Result<Option<Vec<u8>>> {
    let lines = std::mem::take(&mut job.lines);
    let hand_on = |line: &[u8]| {
        job.hear_other(&String::from_utf8_lossy(line), &mut wanted);
        answers.write_all(&[line, b"\n"].concat())?;
        // qmaster's timeout starts anew with each line.
        answers.flush()
    };
    Ok(match other.ask(&lines, hand_on)? {
        Decision::Accepted => None,
        Decision::Rejected(line) => Some(line),
    })
}

/// The wanted requests of a list. As in qmaster, a space separates like a comma, and of two values the last counts.
fn of(list: &str, is_wanted: impl Fn(&str, &str) -> bool) -> BTreeMap<String, String> {
    let one = |one: &str| {
        let (name, amount) = one.split_once('=')?;
        is_wanted(name, amount).then(|| (name.to_owned(), amount.to_owned()))
    };
    list.split([',', ' ']).filter_map(one).collect()
}

fn verdict(asked: &Asked) -> Vec<String> {
    let said = answer(asked);
    if said.iter().all(|line| line.len() <= LONGEST) {
        return said;
    }
    vec!["RESULT STATE REJECT jobfence: what the job asks for is too long. Ask for less at once.".to_owned()]
}

fn answer(asked: &Asked) -> Vec<String> {
    if asked.is_forged {
        return vec![
            "RESULT STATE REJECT jobfence: there is a newline in a name, a path or an argument of the job. Submit it without."
                .to_owned(),
        ];
    }
    if let Some(error) = asked.refused.values().next() {
        return vec![format!("RESULT STATE REJECT jobfence: {error}")];
    }
    for (name, amount) in &asked.cpus {
        if !matches!(number(amount), Some(Some(_))) {
            return vec![format!(
                "RESULT STATE REJECT jobfence: {name}={amount} is no number of CPUs. Ask for one, such as {name}=2"
            )];
        }
    }
    for (name, amount) in &asked.gpus {
        // qmaster reads 010 as 8, which is hardly meant.
        let is_octal = amount.len() > 1 && amount.starts_with('0');
        if amount.is_empty() || is_octal || !amount.bytes().all(|byte| byte.is_ascii_digit()) {
            return vec![format!(
                "RESULT STATE REJECT jobfence: {name}={amount} is no whole number of GPUs. Ask for one, such as {name}=1"
            )];
        }
    }
    for (name, amount) in &asked.memory {
        let Some(found) = bytes(amount) else {
            return vec![format!(
                "RESULT STATE REJECT jobfence: {name}={amount} is no amount of memory. Ask for one, such as {name}=1G"
            )];
        };
        if let Some(found) = found
            && found < LEAST
            // If the configuration is unknown, the amount need not be memory.
            && asked.unknown.is_none()
        {
            let hint = if !amount.starts_with('0') && amount.bytes().all(|byte| byte.is_ascii_digit()) {
                format!(", or did you mean {amount}M?")
            } else {
                ".".to_owned()
            };
            let least = mebibytes(LEAST);
            return vec![format!(
                "RESULT STATE REJECT jobfence: {name}={amount} is {found} bytes. Ask for at least {least}{hint}"
            )];
        }
    }
    let noted: Vec<String> = [&asked.cpus, &asked.memory, &asked.gpus]
        .into_iter()
        .flatten()
        .map(|(name, amount)| format!("{name}={amount}"))
        .collect();
    let mut said = Vec::new();
    if let Some(why) = &asked.unknown {
        // qmaster logs this; a qsub whose own JSV is this program prints it.
        let why: String = why.replace('\n', " ").chars().take(LONGEST / 8).collect();
        said.push(format!("LOG WARNING jobfence: {why}"));
    }
    if !noted.is_empty() {
        // The whole line can be forged in a job without requests. So qmaster is told to grant what is noted here.
        said.push(format!("PARAM {REQUESTS_OF_JOB} {}", asked.requests));
    }
    let noted = if noted.is_empty() { "none".to_owned() } else { noted.join(",") };
    // A value of the user's in this variable is replaced.
    said.extend([format!("ENV MOD {REQUESTED} {noted}"), "RESULT STATE CORRECT".to_owned()]);
    said
}

#[cfg(test)]
mod tests {
    use jobfence::config::PerSlot;

    use super::*;

    fn answers(questions: &str) -> String {
        answers_beside(questions, None)
    }

    fn answers_beside(questions: &str, other: Option<&mut OtherJsv>) -> String {
        let all = |names: &[&str]| names.iter().map(|name| SlotRequest::new(name, PerSlot::AsCounted)).collect();
        let wanted = || {
            Ok(CountedRequests { cpus: all(&["threads"]), memory: all(&["h_vmem", "mem_free"]), gpus: all(&["gpu"]) })
        };
        let follows = |rest: &mut &[u8]| !(rest.is_empty() || rest.starts_with(b"START") || rest.starts_with(b"QUIT"));
        let mut said = Vec::new();
        verify(wanted, follows, other, questions.as_bytes(), &mut said).unwrap();
        String::from_utf8(said).unwrap()
    }

    /// The answer about a job with these lines.
    fn said_of(lines: &str) -> String {
        let said = answers(&format!("START\nPARAM CONTEXT server\n{lines}BEGIN\n"));
        said.strip_prefix("SEND ENV\nSTARTED\n").unwrap().to_owned()
    }

    #[test]
    fn a_variable_need_not_be_text() {
        let mut said = Vec::new();
        let asked = b"START\nENV ADD QRSH_COMMAND a\xffb\nBEGIN\n".as_slice();
        verify(|| Ok(CountedRequests::default()), |_| false, None, asked, &mut said).unwrap();
        assert!(said.ends_with(b"RESULT STATE CORRECT\n"));
    }

    #[test]
    fn what_counts_is_noted_and_nothing_else() {
        let first = "START\nPARAM l_hard mem_free=1G,gpu=2,arch=lx-amd64,h_vmem=200M\nBEGIN\n";
        let noted = "SEND ENV\nSTARTED\nPARAM l_hard mem_free=1G,gpu=2,arch=lx-amd64,h_vmem=200M\n\
                     ENV MOD JOBFENCE_REQUESTED h_vmem=200M,mem_free=1G,gpu=2\nRESULT STATE CORRECT\n";
        assert_eq!(answers(first), noted);
        let none = "SEND ENV\nSTARTED\nENV MOD JOBFENCE_REQUESTED none\nRESULT STATE CORRECT\n";
        assert_eq!(answers(&format!("{first}START\nBEGIN\nQUIT\nSTART\n")), format!("{noted}{none}"), "the next job");
    }

    #[test]
    fn where_it_is_not_known_what_counts_all_amounts_are_noted() {
        let mut said = Vec::new();
        let asked = b"START\nPARAM l_hard mem_free=1G,arch=lx-amd64,h_rt=1:0:0,gpu=2,scratch=7\nBEGIN\n".as_slice();
        verify(|| Err("line 1:\nno such key".to_owned()), |_| false, None, asked, &mut said).unwrap();
        let answer = "SEND ENV\nSTARTED\nLOG WARNING jobfence: line 1: no such key\n\
                      PARAM l_hard mem_free=1G,arch=lx-amd64,h_rt=1:0:0,gpu=2,scratch=7\n\
                      ENV MOD JOBFENCE_REQUESTED gpu=2,mem_free=1G,scratch=7\nRESULT STATE CORRECT\n";
        assert_eq!(String::from_utf8(said).unwrap(), answer);
    }

    #[test]
    fn what_no_job_can_run_in_is_refused() {
        let said = said_of("PARAM l_hard h_vmem=200\n");
        let refused =
            "RESULT STATE REJECT jobfence: h_vmem=200 is 200 bytes. Ask for at least 1.0 MiB, or did you mean 200M?\n";
        assert_eq!(said, refused);
        assert!(said_of("PARAM l_hard h_vmem=2k\n").ends_with("at least 1.0 MiB.\n"));
        assert!(said_of("PARAM l_hard h_vmem=INFINITY\n").ends_with("STATE CORRECT\n"));
        assert!(said_of("PARAM l_hard gpu=0,mem_free=0x40000000\n").contains("mem_free=0x40000000,gpu=0\n"));
        for amount in ["0x", "much", "-1G", "1:0:0", "0x100000000", ""] {
            let said = said_of(&format!("PARAM l_hard mem_free={amount}\n"));
            let refused = format!("mem_free={amount} is no amount of memory. Ask for one, such as mem_free=1G\n");
            assert_eq!(said, format!("RESULT STATE REJECT jobfence: {refused}"));
        }
        for amount in ["1.5", "1k", "INFINITY", "-1", "", "010", "0x2", "1e1"] {
            let said = said_of(&format!("PARAM l_hard gpu={amount}\n"));
            let refused =
                format!("REJECT jobfence: gpu={amount} is no whole number of GPUs. Ask for one, such as gpu=1\n");
            assert_eq!(said, format!("RESULT STATE {refused}"));
        }
    }

    #[test]
    fn what_is_noted_is_what_qmaster_grants() {
        let noted = |lines: &str| said_of(lines).strip_suffix("RESULT STATE CORRECT\n").unwrap().to_owned();
        let granted = |list: &str, noted: &str| format!("PARAM l_hard {list}\nENV MOD JOBFENCE_REQUESTED {noted}\n");
        assert_eq!(noted("PARAM ac x\nPARAM l_hard gpu=4\n"), granted("gpu=4", "gpu=4"), "forged in the context");
        assert_eq!(noted("PARAM l_hard a=b gpu=1 gpu=2\n"), granted("a=b gpu=1 gpu=2", "gpu=2"), "as qmaster reads it");
        assert_eq!(noted("PARAM l_hard arch=lx-amd64\n"), "ENV MOD JOBFENCE_REQUESTED none\n", "nothing that counts");
    }

    #[test]
    fn no_answer_is_longer_than_qmaster_reads() {
        let long = "1".repeat(LONGEST);
        for asked in [format!("mem_free={long}"), format!("gpu={long}x"), format!("gpu=1,other={long}")] {
            let said = said_of(&format!("PARAM l_hard {asked}\n"));
            assert!(said.starts_with("RESULT STATE REJECT jobfence: what the job asks for is too long"), "{said}");
            assert_eq!(said.lines().count(), 1);
        }
    }

    #[test]
    fn a_wrong_wish_is_refused_when_the_job_is_submitted() {
        for (variable, why) in [
            ("JOBFENCE_CPU_LIMIT half", "JOBFENCE_CPU_LIMIT: found \"half\", expected a number of CPUs"),
            ("JOBFENCE_PIDS_MAX 1\\n2", "JOBFENCE_PIDS_MAX: found \"1\\n2\""),
            ("JOBFENCE_SIGNAL_AT mem:90%:KILL", "JOBFENCE_SIGNAL_AT: found \"mem:90%:KILL\""),
        ] {
            let said = said_of(&format!("ENV ADD A b\nENV ADD {variable}\nENV ADD JOBFENCE_PIDS_MAX 60\n"));
            assert!(said.starts_with(&format!("RESULT STATE REJECT jobfence: {why}")), "{said}");
        }
        for fine in ["JOBFENCE_CPU_LIMIT 0.5", "JOBFENCE_CPU_LIMIT ", "JOBFENCE_CPU_LIMIT", "JOBFENCE_CPUS half"] {
            assert!(said_of(&format!("ENV ADD {fine}\n")).ends_with("STATE CORRECT\n"), "{fine}");
        }
    }

    #[test]
    fn cpus_are_a_number() {
        assert!(said_of("PARAM l_hard threads=0.5,gpu=1\n").contains("JOBFENCE_REQUESTED threads=0.5,gpu=1\n"));
        for amount in ["INFINITY", "-1", "many", ""] {
            let refused = format!("threads={amount} is no number of CPUs. Ask for one, such as threads=2\n");
            let said = said_of(&format!("PARAM l_hard threads={amount}\n"));
            assert_eq!(said, format!("RESULT STATE REJECT jobfence: {refused}"));
        }
    }

    #[test]
    fn another_jsv_has_its_word_first() {
        let beside = |answer: &str, questions: &str| {
            let script = format!(
                "while read -r line; do case $line in START) echo STARTED;; BEGIN) {answer};; QUIT) exit;; esac; done"
            );
            let argv = ["/bin/sh", "-c", &script].map(OsString::from).to_vec();
            answers_beside(questions, Some(&mut OtherJsv::new(argv, Duration::from_secs(300))))
        };
        let job = "START\nPARAM l_hard mem_free=1G\nENV ADD JOBFENCE_CPU_LIMIT half\nBEGIN\n";
        let changes = "echo LOG INFO x; echo PARAM l_hard mem_free=2G,threads=3; echo ENV DEL JOBFENCE_CPU_LIMIT; \
                       echo ENV MOD JOBFENCE_REQUESTED mem_free=1T; echo RESULT STATE CORRECT";
        let said = "SEND ENV\nSTARTED\nLOG INFO x\nPARAM l_hard mem_free=2G,threads=3\nENV DEL JOBFENCE_CPU_LIMIT\n\
                    ENV MOD JOBFENCE_REQUESTED mem_free=1T\nPARAM l_hard mem_free=2G,threads=3\n\
                    ENV MOD JOBFENCE_REQUESTED threads=3,mem_free=2G\nRESULT STATE CORRECT\n";
        assert_eq!(beside(changes, job), said, "what it changes counts");
        assert_eq!(beside(changes, &job.repeat(2)), said.repeat(2), "of each job");
        let rejected = beside("echo RESULT STATE REJECT not today", job);
        assert_eq!(rejected, "SEND ENV\nSTARTED\nRESULT STATE REJECT not today\n");
        let ours = beside("echo PARAM l_hard mem_free=much; echo RESULT STATE ACCEPT", job);
        assert!(ours.contains("RESULT STATE REJECT jobfence: JOBFENCE_CPU_LIMIT: found \"half\""), "{ours}");
        // The other JSV does not see a forged line.
        let forged = beside(changes, "START\nPARAM CMDARG0 x\nand more\nBEGIN\n");
        assert!(forged.starts_with("SEND ENV\nSTARTED\nRESULT STATE REJECT jobfence: there is a newline"), "{forged}");
    }

    #[test]
    fn what_a_user_can_have_written_is_no_line_of_the_protocol() {
        let newline = "RESULT STATE REJECT jobfence: there is a newline in a name, a path or an argument of the job";
        for forged in [
            "PARAM CMDARG0 x\nPARAM l_hard gpu=4\nPARAM l_hard gpu=1\n",
            "PARAM l_hard gpu=1\nPARAM o x\nPARAM l_hard gpu=4\n",
            "PARAM CMDARG0 x\nand more\nPARAM notify n\n",
            "PARAM CMDARG0 x\nSTART\nPARAM notify n\n",
            "PARAM CMDARG0 x\nQUIT\nPARAM notify n\n",
            "PARAM CMDARG0 x\nBEGIN\nPARAM notify n\nPARAM l_hard mem_free=1G\n",
        ] {
            let said = said_of(forged);
            assert!(said.starts_with(newline) && said.lines().count() == 1, "{forged}: {said}");
        }
    }
}
