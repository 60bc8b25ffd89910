// SPDX-License-Identifier: GPL-2.0-or-later
//! plugstack.conf, whether it loads us, and files that include themselves.

use jobfence::schedulers::slurm::plugins::Slurm;
use jobfence::schedulers::slurm::plugstack::{self, PlugstackLookup};

use super::{files, slurm_conf::within, text};

pub const WORDS: &[&str] = &[
    "required libjobfence.so\n",
    "optional x_libjobfence.so config=x Mode=off\n",
    "include plugstack.conf\n",
    "include *.conf\n",
    "include plug*\n",
    "include [a-z]*/../?lug*.conf\n",
    "# ",
];

pub fn run(data: &[u8]) {
    let data = within(data);
    files::put("stack/plugstack.conf", &data);
    let file = files::put("stack/slurm.conf", b"");
    if let PlugstackLookup::Line(line) = plugstack::find(Slurm::from_file(&file).plugstack()) {
        assert!(line.plugin.contains("jobfence") && line.number > 0);
        let all = text(&data);
        // A line that Slurm reads in pieces can be cut within a word.
        let is_said = |word: &String| line.is_cut || all.contains(word.as_str());
        assert!(is_said(&line.plugin) && line.arguments.iter().all(is_said));
        let is_word = |word: &String| !word.is_empty() && !word.contains([' ', '\t', '\n', '#']);
        assert!(is_word(&line.plugin) && line.arguments.iter().all(is_word));
    }
}
