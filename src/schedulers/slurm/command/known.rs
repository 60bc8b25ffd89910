// SPDX-License-Identifier: GPL-2.0-or-later
//! For `jobfence check`: the names of partitions, nodes, QOS and accounts that Slurm knows.

use std::path::Path;
use std::time::{Duration, Instant};

use jobfence::config::{Named, SectionKind};
use jobfence::schedulers::slurm::conf::{Lines, value};

use super::job::run_until;
use crate::check::names::KnownNames;

/// How long Slurm's database may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Adds the partitions and nodes of slurm.conf.
pub fn of_conf(file: &Path, known: &mut KnownNames) {
    let lines = Lines::read(file);
    // Dynamic nodes come and go without a line.
    let is_dynamic = lines.last("MaxNodeCount").is_some();
    let of = |key: &str| -> Vec<String> {
        let lists = lines.by_line().filter_map(|line| value(line, key));
        lists.filter(|list| !list.eq_ignore_ascii_case("DEFAULT")).map(str::to_owned).collect()
    };
    known.partitions.push(Some(of("PartitionName")));
    known.nodes = (!is_dynamic).then(|| ("slurm.conf", of("NodeName")));
}

/// Asks Slurm's database, as far as sections need it.
pub fn of_database(sections: &[Named<'_>], known: &mut KnownNames) {
    let ask = |kind: SectionKind, what: &str, field: &str| {
        let named = sections.iter().filter(|section| section.kind() == kind);
        let names: Vec<&str> = named.flat_map(|section| section.names()).map(String::as_str).collect();
        let command = ["--noheader", "--parsable2", "show", what, &names.join(","), field];
        let asked = (!names.is_empty()).then(|| run_until("sacctmgr", &command, Instant::now() + PATIENCE))?;
        Some(asked.ok()?.lines().map(str::to_lowercase).collect())
    };
    known.qos = ask(SectionKind::Qos, "qos", "format=name");
    known.accounts = ask(SectionKind::Account, "account", "format=account");
}
