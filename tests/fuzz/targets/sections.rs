// SPDX-License-Identifier: GPL-2.0-or-later
//! Which sections a job has. An input is a jobfence.conf; comments at its beginning, as `#! partition=gpu`, are the job's facts.

use jobfence::config::{Limit, Resolved, load};
use jobfence::facts::{Fact, Facts};

use super::{files, is_readable, text};

pub const WORDS: &[&str] = &[
    "#! partition=gpu\n",
    "#! groups=chem,bio\n",
    "[Partition=gpu]\n",
    "[QOS=high,low]\n",
    "[Account=chem]\n",
    "[User=alice,1001]\n",
    "[Group=bio,100]\n",
    "[Node=n[01-16],login]\n",
    "#! vnode_types=gpu_a,fat\n",
    "[VnodeType=gpu*,fat]\n",
    "#! pe=mpi\n",
    "[PE=smp,mpi]\n",
    "[Project=p]\n",
    "[Queue=gpu]\n",
    "[Host=n?,log*]\n",
    "Mode=observe\n",
    "MaxProcesses=5\n",
    "MaxRAMPerUser=1G\n",
    "CPUQuotaPercent=50\n",
    "IOMax=/a rbps=1M\n",
    ",",
];

pub fn run(data: &[u8]) {
    let argument = format!("config={}", files::put("sections.conf", data).display());
    let loaded = match load(&[argument.as_bytes()]) {
        Ok(loaded) => loaded,
        Err(error) => return error.errors().iter().for_each(|error| is_readable(&error.to_string())),
    };
    let truth = facts(&text(data), loaded.asked().groups);
    let exact = loaded.for_job(&truth).expect("everything is known");
    assert_eq!((exact.candidates.len(), exact.unknown.len()), (1, 0));
    assert_eq!(exact.config, exact.candidates[0].config);
    let hidden = [
        Facts::default(),
        Facts { partition: Fact::Unknown, ..truth.clone() },
        Facts { qos: Fact::Unknown, account: Fact::Unknown, ..truth.clone() },
        Facts { user: Fact::Unknown, gids: Fact::Unknown, groups: [].into(), ..truth.clone() },
        Facts { node: Fact::Unknown, ..truth.clone() },
        Facts { project: Fact::Unknown, vnode_types: Fact::Unknown, ..truth.clone() },
        Facts { pe: Fact::Unknown, ..truth.clone() },
    ];
    for facts in hidden {
        match loaded.for_job(&facts) {
            Ok(resolved) => {
                assert!((1..=256).contains(&resolved.candidates.len()));
                let is_it = |sections: &Vec<String>| *sections == exact.candidates[0].sections;
                assert!(resolved.candidates.iter().any(|candidate| is_it(&candidate.sections)), "{facts:?}");
                limits_no_less(&resolved, &exact);
            }
            Err(error) => is_readable(&error.to_string()),
        }
    }
}

/// Who is not known to have a section may have what it says, and gets no more than if it were known.
fn limits_no_less(unknown: &Resolved, known: &Resolved) {
    fn below<T: PartialOrd>(strict: Option<T>, known: Option<T>) -> bool {
        known.is_none_or(|known| strict.is_some_and(|strict| strict <= known))
    }
    let (strict, known) = (&unknown.config, &known.config);
    assert!(below(strict.numbers.get(Limit::Processes), known.numbers.get(Limit::Processes)));
    assert!(below(strict.max_ram_per_user, known.max_ram_per_user));
    assert!(below(strict.max_cpus_per_user, known.max_cpus_per_user));
    assert!(strict.cpu_quota_percent <= known.cpu_quota_percent && strict.allowed_ram_space <= known.allowed_ram_space);
    assert!(strict.constrain_ram_space >= known.constrain_ram_space);
    assert!(strict.constrain_devices >= known.constrain_devices);
}

fn facts(text: &str, groups: Vec<String>) -> Facts {
    let said = |key: &str| {
        let lines = text.lines().take(16).filter_map(|line| line.strip_prefix("#! "));
        lines.filter_map(|line| line.split_once('=')).find(|(said, _)| *said == key).map(|(_, value)| value.to_owned())
    };
    let known = |key: &str| Fact::Known(said(key).unwrap_or_default());
    let numbers = |text: String| text.split(',').filter_map(|number| number.parse().ok()).collect();
    let mine = said("groups").unwrap_or_default();
    let mine: Vec<&str> = mine.split(',').collect();
    let groups = groups.into_iter().map(|name| (name.clone(), mine.contains(&name.as_str()))).collect();
    Facts {
        partition: known("partition"),
        qos: known("qos"),
        account: known("account"),
        uid: Fact::Known(said("uid").and_then(|uid| uid.parse().ok()).unwrap_or(1000)),
        user: known("user"),
        gids: Fact::Known(said("gids").map(numbers).unwrap_or_default()),
        groups,
        node: known("node"),
        project: known("project"),
        pe: known("pe"),
        vnode_types: Fact::Known(jobfence::doors::opening::vnode_types(&said("vnode_types").unwrap_or_default())),
        ..Facts::default()
    }
}
