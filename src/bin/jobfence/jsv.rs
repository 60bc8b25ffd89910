// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence jsv`: the job submission verifier of a Grid Engine cluster, by the protocol of jsv_script_interface(3).
//!
//! It notes in the job's environment what the job asks for as memory and as GPUs, since execd tells its shepherd of `h_vmem` alone. And it
//! refuses what no job can run in.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use clap::Args;
use jobfence::bytes::mebibytes;
use jobfence::config::{Config, SlotRequest};
use jobfence::scheduler::gridengine::spool::{REQUESTED, bytes};

use crate::command::Failure;
use crate::configured::Configured;

/// Less is a mistake, such as a unit that was forgotten.
const LEAST: u64 = 1 << 20;

#[derive(Args)]
pub struct JsvOptions {
    #[command(flatten)]
    configured: Configured,
}

/// Answers until qmaster or qsub has no more questions.
pub fn jsv(options: &JsvOptions) -> Result<ExitCode, Failure> {
    // A file with mistakes keeps nobody from submitting jobs: on the hosts they are refused, and it is said why.
    let wanted = || match options.configured.load() {
        Ok(loaded) => CountedRequests::of(&loaded.config),
        Err(error) => {
            let _ = writeln!(io::stderr(), "jobfence: {error}");
            CountedRequests::default()
        }
    };
    verify(wanted, io::stdin().lock(), io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

/// Which requests of a job are noted.
#[derive(Default)]
struct CountedRequests {
    memory: Vec<SlotRequest>,
    gpus: Vec<SlotRequest>,
}

impl CountedRequests {
    fn of(config: &Config) -> Self {
        Self { memory: config.slot_memory.clone(), gpus: config.slot_gpus.clone() }
    }
}

/// What a job asks for, each as its user wrote it.
#[derive(Default)]
struct Asked {
    memory: BTreeMap<String, String>,
    gpus: BTreeMap<String, String>,
}

/// `wanted` says for each job anew what is noted.
fn verify(
    mut wanted: impl FnMut() -> CountedRequests,
    questions: impl BufRead,
    mut answers: impl Write,
) -> io::Result<()> {
    let mut asked = Asked::default();
    for line in questions.lines() {
        let line = line?;
        let mut words = line.splitn(3, ' ');
        match (words.next().unwrap_or_default(), words.next(), words.next()) {
            ("START", ..) => {
                asked = Asked::default();
                writeln!(answers, "STARTED")?;
            }
            ("PARAM", Some("l_hard"), Some(list)) => {
                let wanted = wanted();
                asked = Asked { memory: of(list, &wanted.memory), gpus: of(list, &wanted.gpus) };
            }
            ("BEGIN", ..) => {
                for answer in verdict(&asked) {
                    writeln!(answers, "{answer}")?;
                }
            }
            ("QUIT", ..) => break,
            _ => {}
        }
        answers.flush()?;
    }
    Ok(())
}

/// Those of a list that are wanted.
fn of(list: &str, wanted: &[SlotRequest]) -> BTreeMap<String, String> {
    let one = |one: &str| {
        let (name, amount) = one.split_once('=')?;
        wanted.iter().any(|request| request.name == name).then(|| (name.to_owned(), amount.to_owned()))
    };
    list.split(',').filter_map(one).collect()
}

fn verdict(asked: &Asked) -> Vec<String> {
    for (name, amount) in &asked.memory {
        if let Some(Some(found)) = bytes(amount)
            && found < LEAST
        {
            let hint = if amount.bytes().all(|byte| byte.is_ascii_digit()) {
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
    let noted: Vec<String> =
        asked.memory.iter().chain(&asked.gpus).map(|(name, amount)| format!("{name}={amount}")).collect();
    let noted = if noted.is_empty() { "none".to_owned() } else { noted.join(",") };
    // Whatever the user has said there is replaced.
    vec![format!("ENV MOD {REQUESTED} {noted}"), "RESULT STATE CORRECT".to_owned()]
}

#[cfg(test)]
mod tests {
    use jobfence::config::PerSlot;

    use super::*;

    fn answers(questions: &str) -> String {
        let all = |names: &[&str]| names.iter().map(|name| SlotRequest::of(name, PerSlot::AsCounted)).collect();
        let wanted = || CountedRequests { memory: all(&["h_vmem", "mem_free"]), gpus: all(&["gpu"]) };
        let mut said = Vec::new();
        verify(wanted, questions.as_bytes(), &mut said).unwrap();
        String::from_utf8(said).unwrap()
    }

    #[test]
    fn what_counts_is_noted_and_nothing_else() {
        let first = "START\nPARAM CONTEXT server\nPARAM l_hard mem_free=1G,gpu=2,arch=lx-amd64,h_vmem=200M\nBEGIN\n";
        let noted = "STARTED\nENV MOD JOBFENCE_REQUESTED h_vmem=200M,mem_free=1G,gpu=2\nRESULT STATE CORRECT\n";
        assert_eq!(answers(first), noted);
        let none = "STARTED\nENV MOD JOBFENCE_REQUESTED none\nRESULT STATE CORRECT\n";
        assert_eq!(answers(&format!("{first}START\nBEGIN\nQUIT\nSTART\n")), format!("{noted}{none}"), "the next job");
    }

    #[test]
    fn what_no_job_can_run_in_is_refused() {
        let said = answers("START\nPARAM l_hard h_vmem=200\nBEGIN\n");
        let refused =
            "RESULT STATE REJECT jobfence: h_vmem=200 is 200 bytes. Ask for at least 1.0 MiB, or did you mean 200M?\n";
        assert_eq!(said, format!("STARTED\n{refused}"));
        assert!(answers("START\nPARAM l_hard h_vmem=2k\nBEGIN\n").ends_with("at least 1.0 MiB.\n"));
        assert!(answers("START\nPARAM l_hard h_vmem=INFINITY\nBEGIN\n").ends_with("STATE CORRECT\n"));
    }
}
