// SPDX-License-Identifier: GPL-2.0-or-later
//! Which sections hold for a job, and which could hold if its facts are not known.

use super::pattern::matches_one;
use super::sections::{KINDS, Section, SectionKind, fold};
use crate::error::{Error, Result};
use crate::facts::{Fact, Facts, FactsNeeded};
use crate::sorted;

/// The most combinations of sections that are looked at if facts are unknown: a launch must not take long.
const MAX_CANDIDATES: usize = 256;

/// Whether a section holds for a job.
enum Holds {
    Yes,
    No,
    /// Only if the unknown fact of its kind has one of these values.
    If(Vec<String>),
}

/// Whether this section holds for a job with these facts.
fn has(section: &Section, facts: &Facts, users_are_trusted: bool) -> Holds {
    let (kind, names) = (section.kind(), section.names());
    let one_of = |fact: &Fact<String>| match fact.counts(users_are_trusted) {
        Some(value) if names.contains(&fold(kind, value)) => Holds::Yes,
        Some(_) => Holds::No,
        None => Holds::If(names.to_vec()),
    };
    match kind {
        SectionKind::Partition => one_of(&facts.partition),
        SectionKind::Qos => one_of(&facts.qos),
        SectionKind::Account => one_of(&facts.account),
        SectionKind::Project => one_of(&facts.project),
        SectionKind::Pe => one_of(&facts.pe),
        SectionKind::VnodeType => match facts.vnode_types.known() {
            Some(types) if types.iter().any(|name| matches_one(names, name)) => Holds::Yes,
            Some(_) => Holds::No,
            None => Holds::If(names.to_vec()),
        },
        SectionKind::User => match facts.uid.known() {
            Some(uid) if names.contains(&uid.to_string()) => Holds::Yes,
            Some(_) if names.iter().all(|name| is_number(name)) => Holds::No,
            _ => one_of(&facts.user),
        },
        SectionKind::Group => {
            let is_in = |name: &String| match (facts.gids.known(), facts.group(name)) {
                (Some(gids), _) if is_number(name) => Some(name.parse().is_ok_and(|gid| gids.contains(&gid))),
                (_, known) => known,
            };
            let known: Vec<_> = names.iter().map(|name| (name, is_in(name))).collect();
            let unknown: Vec<_> = known.iter().filter(|(_, is_in)| is_in.is_none()).collect();
            match (known.iter().any(|(_, is_in)| *is_in == Some(true)), unknown.is_empty()) {
                (true, _) => Holds::Yes,
                (false, true) => Holds::No,
                (false, false) => Holds::If(unknown.iter().map(|(name, _)| (*name).clone()).collect()),
            }
        }
        SectionKind::Node => match facts.node.known() {
            Some(node) if section.names_node(node) => Holds::Yes,
            Some(_) => Holds::No,
            // Lists of nodes can overlap, so each is looked at by itself.
            None => Holds::If(vec![section.header.clone()]),
        },
    }
}

fn is_number(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit())
}

/// The facts that these sections ask for.
pub(super) fn asked(sections: &[Section]) -> FactsNeeded {
    let mut asked = FactsNeeded::default();
    for section in sections {
        let names = section.names();
        match section.kind() {
            SectionKind::Partition | SectionKind::Qos | SectionKind::Account => asked.job = true,
            SectionKind::User => asked.user |= names.iter().any(|name| !is_number(name)),
            SectionKind::Group => {
                asked.gids = true;
                let new = names.iter().filter(|name| !is_number(name));
                asked.groups.extend(new.cloned());
            }
            SectionKind::Node => asked.node = true,
            // The caller has given these facts, or they cannot be known.
            SectionKind::Project | SectionKind::VnodeType | SectionKind::Pe => {}
        }
    }
    sorted::sort(&mut asked.groups);
    asked.groups.dedup();
    asked
}

/// Every set of sections that can hold for a job with these facts, each in the order of the file, and the kinds whose facts are unknown.
///
/// If all facts that sections ask for are known, there is one set. Fails if there are more than 256.
pub(super) fn candidates(
    sections: &[Section],
    facts: &Facts,
    users_are_trusted: bool,
) -> Result<(Vec<Vec<usize>>, Vec<SectionKind>)> {
    let mut sets: Vec<Vec<usize>> = vec![Vec::new()];
    let mut open: Vec<(SectionKind, usize, Vec<String>)> = Vec::new();
    let mut certain = Vec::new();
    for (index, section) in sections.iter().enumerate() {
        match has(section, facts, users_are_trusted) {
            Holds::Yes => certain.push(index),
            Holds::No => {}
            Holds::If(values) => open.push((section.kind(), index, values)),
        }
    }
    let mut unknown = Vec::new();
    for &(_, kind) in KINDS {
        let of_kind: Vec<_> = open.iter().filter(|(of, ..)| *of == kind).collect();
        // `KINDS` has a kind with two words twice.
        if of_kind.is_empty() || unknown.contains(&kind) {
            continue;
        }
        unknown.push(kind);
        let mut with: Vec<(&String, usize)> = Vec::new();
        for (_, index, values) in &of_kind {
            with.extend(values.iter().map(|value| (value, *index)));
        }
        sorted::sort(&mut with);
        let mut with: Vec<Vec<usize>> =
            with.chunk_by(|a, b| a.0 == b.0).map(|same| same.iter().map(|(_, index)| *index).collect()).collect();
        with.dedup();
        // A job has one of these values, or one that no section names. But it may have several groups and types of vnodes, and a node may
        // be in several lists.
        let steps: Vec<Vec<Vec<usize>>> = match kind {
            SectionKind::Group | SectionKind::Node | SectionKind::VnodeType => {
                with.into_iter().map(|sections| vec![sections]).collect()
            }
            SectionKind::Partition
            | SectionKind::Qos
            | SectionKind::Account
            | SectionKind::Project
            | SectionKind::Pe
            | SectionKind::User => vec![with],
        };
        for alternatives in steps {
            let before = sets.clone();
            for alternative in alternatives {
                for both in before.iter().map(|set| union(set, &alternative)) {
                    if let Err(at) = sets.binary_search(&both) {
                        sets.insert(at, both);
                    }
                }
                if sets.len() > MAX_CANDIDATES {
                    return Err(too_many(&unknown));
                }
            }
        }
    }
    Ok((sets.iter().map(|set| union(set, &certain)).collect(), unknown))
}

fn union(some: &[usize], others: &[usize]) -> Vec<usize> {
    let mut all = [some, others].concat();
    sorted::sort(&mut all);
    all.dedup();
    all
}

fn too_many(unknown: &[SectionKind]) -> Error {
    let unknown: Vec<String> = unknown.iter().map(SectionKind::to_string).collect();
    Error::new(format!(
        "which sections of jobfence.conf hold for this job is not known ({}), and there are more than {MAX_CANDIDATES} \
         possibilities",
        unknown.join(", ")
    ))
    .hint("have fewer sections; under Slurm, have 'jobfence prolog' called by slurm.conf's Prolog=, which notes down what Slurm says of the job")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::samples::section;
    use super::*;

    fn sections(headers: &[(&str, &str)]) -> Vec<Section> {
        headers.iter().map(|(kind, values)| section(kind, values).unwrap()).collect()
    }

    fn known(text: &str) -> Fact<String> {
        Fact::Known(text.to_owned())
    }

    fn sets(headers: &[(&str, &str)], facts: &Facts) -> Vec<Vec<usize>> {
        candidates(&sections(headers), facts, false).unwrap().0
    }

    #[test]
    fn known_facts_choose_one_set() {
        let headers = [
            ("Partition", "gpu,debug"),
            ("QOS", "High"),
            ("Account", "physics"),
            ("User", "alice,1002"),
            ("Group", "staff,50"),
            ("Node", "n[1-4]"),
            ("partition", "debug"),
        ];
        let mut facts = Facts {
            partition: known("debug"),
            qos: known("HIGH"),
            account: known("Physics"),
            uid: Fact::Known(1001),
            user: known("alice"),
            gids: Fact::Known(vec![7]),
            groups: [("staff".to_owned(), true)].into(),
            node: known("n4"),
            ..Facts::default()
        };
        assert_eq!(sets(&headers, &facts), [[0, 1, 2, 3, 4, 5, 6]]);
        facts = Facts {
            // Partitions, users and nodes distinguish case.
            partition: known("GPU"),
            qos: known(""),
            account: known("physicss"),
            uid: Fact::Known(1003),
            user: known("Alice"),
            gids: Fact::Known(vec![7]),
            groups: [("staff".to_owned(), false)].into(),
            node: known("n5"),
            ..facts
        };
        assert_eq!(sets(&headers, &facts), [[0usize; 0]]);
        // The user is asked for by number, and has no name.
        facts = Facts {
            uid: Fact::Known(1002),
            user: Fact::Unknown,
            gids: Fact::Known(vec![7, 50]),
            groups: [].into(),
            ..facts
        };
        assert_eq!(sets(&headers, &facts), [[3, 4]]);
    }

    #[test]
    fn what_a_user_says_counts_only_where_the_site_says_so() {
        let sections = sections(&[("Account", "a"), ("Project", "p"), ("Queue", "q")]);
        let claimed = |text: &str| Fact::Claimed(text.to_owned());
        let facts = Facts { account: claimed("a"), project: claimed("x"), partition: known("q"), ..Facts::default() };
        let (all, unknown) = candidates(&sections, &facts, false).unwrap();
        assert_eq!(all, [vec![2], vec![0, 2], vec![0, 1, 2], vec![1, 2]], "each that could hold");
        assert_eq!(unknown, [SectionKind::Account, SectionKind::Project]);
        assert_eq!(candidates(&sections, &facts, true).unwrap(), (vec![vec![0, 2]], Vec::new()));
    }

    #[test]
    fn the_words_of_other_schedulers_choose_the_same() {
        let headers = [
            ("Queue", "workq"),
            ("queue", "Workq"),
            ("Project", "p1,p2"),
            ("VnodeType", "gpu*,fat"),
            ("Host", "login*"),
            ("HOST", "n[1-4]"),
            ("Host", "n1.example.org"),
            ("PE", "smp,mpi"),
            ("pe", "Mpi"),
        ];
        let types = |all: &[&str]| Fact::Known(all.iter().map(|name| (*name).to_owned()).collect());
        let facts = Facts {
            partition: known("workq"),
            project: known("p2"),
            vnode_types: types(&["thin", "gpu_a100"]),
            pe: known("mpi"),
            node: known("n1.example.org"),
            ..Facts::default()
        };
        assert_eq!(sets(&headers, &facts), [[0, 2, 3, 5, 6, 7]]);
        let short = Facts { node: known("n1"), vnode_types: types(&["fat"]), pe: known(""), ..facts.clone() };
        assert_eq!(sets(&headers, &short), [[0, 2, 3, 5]]);
        // Slurm's jobs are known to have none of these.
        let slurms = Facts { node: known("login1"), ..facts }.of_no_project_vnode_or_pe();
        assert_eq!(sets(&headers, &slurms), [[0, 4]]);
        let (all, unknown) = candidates(&sections(&headers[2..4]), &Facts::default(), false).unwrap();
        assert_eq!((all.len(), unknown), (4, vec![SectionKind::Project, SectionKind::VnodeType]));
        let (all, unknown) = candidates(&sections(&[("PE", "smp"), ("PE", "mpi")]), &Facts::default(), false).unwrap();
        assert_eq!((all.len(), unknown), (3, vec![SectionKind::Pe]), "a job has one of them, or none");
        // A job may have vnodes of both types, and is in one queue, whatever the section calls it.
        assert_eq!(sets(&[("VnodeType", "a"), ("VnodeType", "b")], &Facts::default()).len(), 4);
        let (all, unknown) =
            candidates(&sections(&[("Queue", "a"), ("Partition", "b")]), &Facts::default(), false).unwrap();
        assert_eq!((all.len(), unknown), (3, vec![SectionKind::Partition]));
    }

    #[test]
    fn unknown_facts_leave_every_possibility() {
        let partitions =
            [("Partition", "gpu,debug"), ("Partition", "debug"), ("Partition", "gpu"), ("Partition", "big")];
        let mut all = sets(&partitions, &Facts::default());
        all.sort_unstable();
        assert_eq!(all, [vec![], vec![0, 1], vec![0, 2], vec![3]]);
        // One of a kind at a time, but each combination of kinds; several groups together.
        assert_eq!(sets(&[("Partition", "a"), ("QOS", "x"), ("QOS", "y")], &Facts::default()).len(), 6);
        assert_eq!(sets(&[("Group", "a"), ("Group", "b"), ("Group", "c")], &Facts::default()).len(), 8);
        assert_eq!(sets(&[("Node", "n1"), ("Node", "n[1-2]")], &Facts::default()).len(), 4);
        // A user that is known not to be in one group may still be in the other.
        let facts = Facts { groups: [("a".to_owned(), false)].into(), ..Facts::default() };
        assert_eq!(sets(&[("Group", "a,b"), ("Group", "a")], &facts), [vec![], vec![0]]);
        let unknown = candidates(&sections(&[("Node", "n1"), ("Partition", "a")]), &Facts::default(), false).unwrap().1;
        assert_eq!(unknown, [SectionKind::Partition, SectionKind::Node]);
        // A fact that no section names is not asked for.
        assert_eq!(sets(&[], &Facts::default()), [[0usize; 0]]);
    }

    #[test]
    fn too_many_possibilities_are_refused_with_the_remedy() {
        let names: Vec<String> = (0..255).map(|n| format!("p{n}")).collect();
        let headers: Vec<_> = names.iter().map(|name| ("Partition", name.as_str())).collect();
        assert_eq!(sets(&headers, &Facts::default()).len(), 256);
        let more = [headers, vec![("QOS", "x")]].concat();
        let error = candidates(&sections(&more), &Facts::default(), false).unwrap_err().to_string();
        assert!(error.contains("(Partition, QOS)") && error.contains("Prolog="), "{error}");
    }

    #[test]
    fn only_what_sections_speak_of_is_asked_for() {
        assert_eq!(asked(&[]), FactsNeeded::default());
        let by_number = sections(&[("User", "1,2"), ("Group", "3")]);
        assert_eq!(asked(&by_number), FactsNeeded { gids: true, ..FactsNeeded::default() });
        let all = sections(&[("QOS", "x"), ("User", "1,b"), ("Group", "z,3,a"), ("Group", "a"), ("Node", "n")]);
        let groups = vec!["a".to_owned(), "z".to_owned()];
        assert_eq!(asked(&all), FactsNeeded { job: true, user: true, gids: true, groups, node: true });
    }

    proptest! {
        /// Whatever an unknown fact is in truth, its sections are among the candidates.
        #[test]
        fn the_truth_is_among_the_candidates(
            headers in prop::collection::vec((0usize..4, "[abc](,[abc])?"), 0..6),
            truth in "[abcd]", account in "[abcd]", groups in "[abc]{0,3}",
        ) {
            let kinds = ["Partition", "Account", "User", "Group"];
            let headers: Vec<_> = headers.iter().map(|(kind, names)| (kinds[*kind], names.as_str())).collect();
            let facts = Facts {
                partition: known(&truth), account: known(&account), uid: Fact::Known(7), user: known(&account),
                gids: Fact::Known(vec![]),
                groups: ["a", "b", "c"].map(|name| (name.to_owned(), groups.contains(name))).into(),
                ..Facts::default()
            };
            let exact = sets(&headers, &facts);
            prop_assert_eq!(exact.len(), 1);
            for hidden in [
                Facts { partition: Fact::Unknown, ..facts.clone() },
                Facts { account: Fact::Unknown, user: Fact::Unknown, ..facts.clone() },
                Facts { groups: [].into(), ..facts.clone() },
                Facts::default(),
            ] {
                prop_assert!(sets(&headers, &hidden).contains(&exact[0]), "{:?} {:?}", headers, hidden);
            }
        }
    }
}
