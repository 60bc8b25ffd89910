// SPDX-License-Identifier: GPL-2.0-or-later
//! The facts of a job that its user writes: sections that depend on them apply only if something checks those facts.

use jobfence::config::Loaded;
use jobfence::facts::{Fact, Facts};

use super::rows::Rows;

/// Facts that a job's user writes.
#[derive(Debug, Clone, Copy)]
pub struct Claims {
    /// How the headers of the sections that depend on them begin.
    pub kinds: &'static [&'static str],
    /// What makes the facts count.
    pub remedy: &'static str,
}

/// The facts, with those of these kinds made mere claims.
pub fn as_claimed(kinds: &[&str], facts: Facts) -> Facts {
    let claim = |kind: &str, fact: Fact<String>| match fact {
        Fact::Known(text) if kinds.contains(&kind) => Fact::Claimed(text),
        fact => fact,
    };
    let (account, project) = (claim("[Account=", facts.account), claim("[Project=", facts.project));
    Facts { account, project, ..facts }
}

/// Prints the sections that a job's user could choose.
pub fn claimed(rows: &mut Rows, loaded: &Loaded, scheduler: &str, kinds: &[&str], remedy: &str) {
    let of_kind = |header: &&str| kinds.iter().any(|kind| header.starts_with(kind));
    let headers: Vec<&str> = loaded.sections().map(|(header, _)| header).filter(of_kind).collect();
    if headers.is_empty() {
        return;
    }
    let headers = headers.join(", ");
    if loaded.config.trust_account {
        rows.remark("sections", format!("TrustAccount=yes: under {scheduler} a job's user chooses {headers}"));
    } else {
        rows.remark(
            "sections",
            format!(
                "under {scheduler} a job's user writes what {headers} ask for, so each job has the strictest of \
             what could hold; {remedy}"
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_writes_is_claimed_where_the_door_takes_it_so() {
        let known = |name: &str| Fact::Known(name.to_owned());
        let said = || Facts { account: known("a"), project: known("p"), partition: known("q"), ..Facts::default() };
        let facts = |kinds: &[&str]| {
            let facts = as_claimed(kinds, said());
            assert_eq!(facts.partition, known("q"));
            (facts.account, facts.project)
        };
        let claimed = |name: &str| Fact::Claimed(name.to_owned());
        assert_eq!(facts(&[]), (known("a"), known("p")));
        assert_eq!(facts(&["[Account="]), (claimed("a"), known("p")));
        assert_eq!(facts(&["[Account=", "[Project="]), (claimed("a"), claimed("p")));
        assert_eq!(as_claimed(&["[Account="], Facts::default()).account, Fact::Unknown);
    }
}
