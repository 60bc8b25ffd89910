// SPDX-License-Identifier: GPL-2.0-or-later
//! plugstack.conf, whether it loads us, and files that include themselves.

use jobfence::slurm_placement::{Plugin, Slurm};

use super::{files, slurm_conf::within, text};

pub const WORDS: &[&str] = &[
    "required libjobfence.so\n",
    "optional x_libjobfence.so config=x Mode=off\n",
    "include plugstack.conf\n",
    "include *.conf\n",
    "include plug*\n",
    "# ",
];

pub fn run(data: &[u8]) {
    let data = within(data);
    files::put("stack/plugstack.conf", &data);
    let file = files::put("stack/slurm.conf", b"");
    match Slurm::of(&file).plugin() {
        Plugin::Line { line, file, arguments } => {
            assert!(file.to_string_lossy().ends_with("libjobfence.so"));
            assert!(line.starts_with("required ") || line.starts_with("optional "));
            let words: Vec<String> = text(&data).split_whitespace().map(str::to_owned).collect();
            assert!(arguments.iter().all(|argument| words.iter().any(|word| word.starts_with(argument.as_str()))));
        }
        Plugin::NoFile(line) => panic!("a path with a slash: {line}"),
        Plugin::Missing(_) => {}
    }
}
