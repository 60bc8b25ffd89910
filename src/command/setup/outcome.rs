// SPDX-License-Identifier: GPL-2.0-or-later
//! The options of `jobfence setup`, and its outcome: the last line and the exit status.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use jobfence::printable::printable_lines;

/// The exit status if something was changed, or would be.
const CHANGED: u8 = 2;

/// The exit status if a scheduler would go on to start jobs by jobfence. Package scripts read it: the programs must stay.
const STILL_STARTS: u8 = 3;

#[derive(Args)]
pub struct SetupOptions {
    /// Show what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Take back what 'jobfence setup' has done
    ///
    /// Each file becomes what it was before, unless somebody has changed it since. Such a file stays, and the command names it. The exit
    /// status is 3 if a scheduler still starts jobs of this node by jobfence then, by whatever setting: do not remove the programs.
    #[arg(long)]
    pub undo: bool,
    /// Only for this scheduler: slurm, gridengine, openpbs or htcondor [default: all that are here]
    ///
    /// May be repeated.
    #[arg(long, value_name = "NAME")]
    pub scheduler: Vec<String>,
    /// Do what reaches more than this node, too
    ///
    /// Such steps are commands for the scheduler's server, and files that nodes share. They are otherwise only shown.
    #[arg(long)]
    pub central: bool,
    /// Where the changes are recorded
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/jobfence/setup", hide = true)]
    pub journal: PathBuf,
    /// Let the schedulers start this program, also if others than root can replace it: for tests
    #[arg(long, hide = true)]
    pub any_program: bool,
    /// Where the scheduler's files of this installation are
    #[arg(long, value_name = "DIRECTORY", hide = true)]
    pub data: Option<PathBuf>,
}

/// The outcome for all schedulers.
#[derive(Default)]
pub struct Outcome {
    pub is_changed: bool,
    /// What went well, as sentences.
    pub good: Vec<String>,
    /// Whether a step is shown that is done by hand.
    pub is_by_hand: bool,
    /// What the administrator has to do.
    pub to_do: Vec<String>,
    /// The chosen schedulers that still start jobs by jobfence after an undo, each with the setting that makes it.
    pub still: Vec<String>,
}

impl Outcome {
    /// Prints the last line, and returns the exit status.
    pub fn say(self, options: &SetupOptions) -> ExitCode {
        if !self.still.is_empty() || !self.to_do.is_empty() {
            // One of these can say how to undo what reaches more than this node.
            self.good.iter().for_each(|good| say("done", good));
            say("to do", &[self.still.as_slice(), &self.to_do].concat().join("; "));
            return if self.still.is_empty() { ExitCode::FAILURE } else { ExitCode::from(STILL_STARTS) };
        }
        let word = match (self.is_changed, options.undo, options.dry_run) {
            (true, _, true) => "would change",
            (true, true, false) => "undone",
            (true, false, false) => "set up",
            (false, ..) => "unchanged",
        };
        let good = match (self.good.is_empty(), self.is_by_hand) {
            (true, false) => "nothing is to be done".to_owned(),
            (true, true) => "nothing is to be done but what stands above ('by hand')".to_owned(),
            (false, _) => self.good.join("; "),
        };
        say(word, &good);
        if self.is_changed { ExitCode::from(CHANGED) } else { ExitCode::SUCCESS }
    }
}

pub fn say(label: &str, text: &str) {
    println!("{label:<14} {}", printable_lines(text, '?'));
}
