// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence jsv`: the job submission verifier of a Grid Engine cluster, by the protocol of jsv_script_interface(3).
//!
//! It notes in the job's environment what the job asks for as memory, since execd tells its shepherd of `h_vmem` alone. And it refuses
//! what no job can run in.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use clap::Args;
use jobfence::bytes::mebibytes;
use jobfence::config::SlotMemory;
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
        Ok(loaded) => loaded.config.slot_memory,
        Err(error) => {
            let _ = writeln!(io::stderr(), "jobfence: {error}");
            Vec::new()
        }
    };
    verify(wanted, io::stdin().lock(), io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

/// `wanted` says for each job anew what is memory.
fn verify(
    mut wanted: impl FnMut() -> Vec<SlotMemory>,
    questions: impl BufRead,
    mut answers: impl Write,
) -> io::Result<()> {
    let mut requests = BTreeMap::new();
    for line in questions.lines() {
        let line = line?;
        let mut words = line.splitn(3, ' ');
        match (words.next().unwrap_or_default(), words.next(), words.next()) {
            ("START", ..) => {
                requests.clear();
                writeln!(answers, "STARTED")?;
            }
            ("PARAM", Some("l_hard"), Some(list)) => requests = memory_in(list, &wanted()),
            ("BEGIN", ..) => {
                for answer in verdict(&requests) {
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

/// The requests that are memory, each as its user wrote it.
fn memory_in(list: &str, wanted: &[SlotMemory]) -> BTreeMap<String, String> {
    let one = |one: &str| {
        let (name, amount) = one.split_once('=')?;
        wanted.iter().any(|memory| memory.name == name).then(|| (name.to_owned(), amount.to_owned()))
    };
    list.split(',').filter_map(one).collect()
}

fn verdict(requests: &BTreeMap<String, String>) -> Vec<String> {
    for (name, amount) in requests {
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
    let noted: Vec<String> = requests.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
    let noted = if noted.is_empty() { "none".to_owned() } else { noted.join(",") };
    // Whatever the user has said there is replaced.
    vec![format!("ENV MOD {REQUESTED} {noted}"), "RESULT STATE CORRECT".to_owned()]
}

#[cfg(test)]
mod tests {
    use jobfence::config::PerSlot;

    use super::*;

    fn answers(questions: &str) -> String {
        let wanted = || ["h_vmem", "mem_free"].map(|name| SlotMemory::of(name, PerSlot::AsCounted)).to_vec();
        let mut said = Vec::new();
        verify(wanted, questions.as_bytes(), &mut said).unwrap();
        String::from_utf8(said).unwrap()
    }

    #[test]
    fn what_is_memory_is_noted_and_nothing_else() {
        let first = "START\nPARAM CONTEXT server\nPARAM l_hard mem_free=1G,arch=lx-amd64,h_vmem=200M\nBEGIN\n";
        let noted = "STARTED\nENV MOD JOBFENCE_REQUESTED h_vmem=200M,mem_free=1G\nRESULT STATE CORRECT\n";
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
