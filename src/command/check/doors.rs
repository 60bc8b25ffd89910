// SPDX-License-Identifier: GPL-2.0-or-later
//! What the schedulers that run here are configured to do with jobs, and which facts of a job its user writes.

use jobfence::config::Named;
use jobfence::facts::Facts;
use jobfence::sys::dir::Dir;

use super::claims::{Claims, as_claimed, claimed};
use super::names::KnownNames;
use super::rows::Rows;
use super::verdict::Verdict;
use crate::part::CheckedHost;
use crate::schedulers;

/// A job's facts from the options: under a scheduler that runs here, facts that the job's user would write are only claims.
pub fn of_user(proc: &Dir, facts: Facts) -> Facts {
    let here = schedulers::ALL.iter().filter_map(|part| part.claims(proc));
    as_claimed(&here.flat_map(|claims| claims.kinds).copied().collect::<Vec<_>>(), facts)
}

/// Prints the findings, and adds to the verdict why no job would be fenced.
pub fn look(host: &CheckedHost<'_>, rows: &mut Rows, verdict: &mut Verdict) {
    for part in schedulers::ALL {
        if let Some(Claims { kinds, remedy }) = part.claims(host.proc) {
            claimed(rows, host.loaded, part.name(), kinds, remedy);
        }
    }
    for part in schedulers::ALL {
        part.check(host, rows, verdict);
    }
}

/// Prints for each section the names that no scheduler here knows, and what was probably meant.
pub fn names(host: &CheckedHost<'_>, rows: &mut Rows) {
    let sections: Vec<Named<'_>> = host.loaded.named().collect();
    let mut all = KnownNames::default();
    for part in schedulers::ALL {
        part.add_names(host, &sections, &mut all);
    }
    for line in sections.iter().flat_map(|section| all.unknown_of(section)) {
        rows.remark("section", line);
    }
}
