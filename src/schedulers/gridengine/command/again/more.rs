// SPDX-License-Identifier: GPL-2.0-or-later
//! How much the next run of a job asks for, and what it can have here at most. It asks nobody: all that it knows is given.

use jobfence::config::RunAgain;
use jobfence::schedulers::gridengine::amount::bytes;
use jobfence::schedulers::gridengine::complexes::{Complex, Counted, value_of};
use jobfence::schedulers::gridengine::spool::is_of_execd;

use crate::again::size;
use crate::again::{AskedMemory, MemoryBounds, MemoryUnit};

/// What the next run asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct MoreMemory {
    /// On its host, for all of it.
    pub all: AskedMemory,
    /// The amount of each request that is raised, in bytes.
    pub amounts: Vec<(String, u64)>,
}

/// What qmaster has, as qconf prints it.
pub struct QmasterSays<'a> {
    /// `qconf -sc`.
    pub complexes: &'a str,
    /// `qconf -se` of the host and of `global`, and `qconf -sq` of the queue's instance.
    pub givers: &'a [String],
}

/// The next run of a job with these shares: the request, all of its amount in bytes, and how often an amount counts. `memory`: of the host, in
/// bytes. `restarts`: how often it was put back already. The error says why there is none.
pub fn next(
    again: RunAgain,
    restarts: u32,
    shares: &[(&str, u64, u32)],
    memory: u64,
    says: &QmasterSays<'_>,
) -> Result<MoreMemory, String> {
    let lowest = shares.iter().map(|(_, all, _)| *all).min();
    let lowest = lowest.ok_or("it has no memory of which SlotMemory in jobfence.conf speaks")?;
    let mib = (lowest >> 20).max(1);
    let share = again.share.of(lowest);
    let low: Vec<_> = shares.iter().filter(|(_, all, _)| *all < share).collect();
    if let Some((name, ..)) = low.iter().find(|(name, ..)| !is_of_execd(name)) {
        return Err(format!("its limit follows from {name}, which a JSV has noted when it was submitted"));
    }
    let most = low.iter().filter_map(|(name, _, times)| most_of(name, *times, says)).min();
    let bounds =
        MemoryBounds { per_node: most.map(|bytes| bytes >> 20), node: Some(memory >> 20), ..MemoryBounds::default() };
    let all = size::next(again, restarts, AskedMemory { unit: MemoryUnit::Host, mib }, mib, &bounds)?;
    let total = all.mib << 20;
    let raised = |(name, before, times): &&(&str, u64, u32)| {
        // A whole number of KiB, and never more than there is.
        let each = (total / u64::from((*times).max(1))) & !1023;
        (each.saturating_mul(u64::from(*times)) > *before).then(|| ((*name).to_owned(), each))
    };
    let amounts: Vec<_> = low.iter().filter_map(raised).collect();
    let after = |(name, before, times): &(&str, u64, u32)| {
        let raised = amounts.iter().find(|(of, _)| of == name);
        raised.map_or(*before, |(_, each)| each.saturating_mul(u64::from(*times)))
    };
    if shares.iter().map(after).min().is_none_or(|after| after <= lowest) {
        return Err("its amount for each slot would be no larger".to_owned());
    }
    Ok(MoreMemory { all, amounts })
}

/// The most of a request on this host, in bytes for all slots. `None`: as much as it asks for.
///
/// A consumable gives each slot its amount, or all of them one; any other value that a host or a queue has is compared with the amount. A
/// queue also has a limit of its own by this name, which is compared.
fn most_of(name: &str, times: u32, says: &QmasterSays<'_>) -> Option<u64> {
    let is_counted = Complex::all(says.complexes)
        .into_iter()
        .find(|complex| complex.name == name)
        .is_some_and(|complex| complex.counted != Counted::No);
    let of_all = |each: u64| each.saturating_mul(u64::from(times));
    let given = says.givers.iter().filter_map(|giver| {
        let values = value_of(giver, "complex_values")?;
        let found = values.split([',', ' ']).find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?;
        bytes(found)?.map(|value| if is_counted { value } else { of_all(value) })
    });
    let of_queue = says.givers.iter().filter_map(|giver| bytes(&value_of(giver, name)?)?.map(of_all));
    given.chain(of_queue).min()
}

/// Why qmaster would not have the job ask for more. `None`: its configuration says no reason.
///
/// With a `jsv_url`, it refuses each change whose word is not in `jsv_allowed_mod` (`jsv_is_modify_rejected`).
pub fn refuses(configuration: &str) -> Option<String> {
    let value = |key| value_of(configuration, key).unwrap_or_default();
    if ["", "none"].contains(&&*value("jsv_url").to_ascii_lowercase()) {
        return None;
    }
    let allowed = value("jsv_allowed_mod");
    let lacks = ["l_hard", "h", "ac"].into_iter().find(|wanted| !allowed.split([',', ' ']).any(|word| word == *wanted));
    lacks.map(|word| format!("there is a jsv_url, and jsv_allowed_mod has no {word}"))
}

#[cfg(test)]
mod tests {
    use jobfence::config::Percent;
    use proptest::prelude::*;

    use super::*;

    const AGAIN: RunAgain = RunAgain { share: Percent::from_hundredths(15_000), most: 2 };
    const COMPLEXES: &str = "#name shortcut type relop requestable consumable default urgency\n\
        h_vmem h_vmem MEMORY <= YES YES 0 0\nh_rss h_rss MEMORY <= YES NO 0 0\ns_vmem s_vmem MEMORY <= YES JOB 0 0\n";
    const MIB: u64 = 1 << 20;

    fn of(shares: &[(&str, u64, u32)], givers: &[&str]) -> Result<Vec<String>, String> {
        let shares: Vec<_> = shares.iter().map(|(name, mib, times)| (*name, *mib * MIB, *times)).collect();
        let givers: Vec<_> = givers.iter().map(|giver| (*giver).to_owned()).collect();
        let says = QmasterSays { complexes: COMPLEXES, givers: &givers };
        let more = next(AGAIN, 0, &shares, 1000 * MIB, &says)?;
        let amounts = more.amounts.iter().map(|(name, bytes)| format!("{name}={}", *bytes >> 10));
        Ok([more.all.mib.to_string()].into_iter().chain(amounts).collect())
    }

    fn some(words: &[&str]) -> Result<Vec<String>, String> {
        Ok(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn all_that_keep_the_limit_low_are_raised_and_never_above_what_there_is() {
        let one = [("h_vmem", 100, 1)];
        for (shares, givers, expected) in [
            (&one[..], &[][..], &["150", "h_vmem=153600"][..]),
            (&[("h_vmem", 100, 3)], &[], &["150", "h_vmem=51200"]),
            (&[("h_vmem", 100, 3), ("h_rss", 120, 3)], &[], &["150", "h_vmem=51200", "h_rss=51200"]),
            (&[("h_vmem", 100, 1), ("h_rss", 400, 1)], &[], &["150", "h_vmem=153600"]),
            // 700 is more than the host has for it.
            (&[("h_vmem", 700, 1)], &[], &["1000", "h_vmem=1024000"]),
            (&one, &["complex_values h_vmem=120M,slots=4\n"], &["120", "h_vmem=122880"]),
            (
                &one,
                &["complex_values NONE\n", "complex_values slots=4,\\\n   h_vmem=130M\n"],
                &["130", "h_vmem=133120"],
            ),
            // What is counted is for all slots, and what is compared is for each.
            (&[("h_vmem", 100, 2)], &["complex_values h_vmem=130M\n"], &["130", "h_vmem=66560"]),
            (&[("h_rss", 100, 2)], &["complex_values h_rss=65M\n"], &["130", "h_rss=66560"]),
            (&[("h_vmem", 100, 2)], &["complex_values NONE\nh_vmem 60M\n"], &["120", "h_vmem=61440"]),
            (&one, &["complex_values NONE\nh_vmem INFINITY\n"], &["150", "h_vmem=153600"]),
            (&[("s_vmem", 100, 1)], &["complex_values s_vmem=140M\n"], &["140", "s_vmem=143360"]),
            (&[("h_vmem", 100, 1), ("h_rss", 110, 1)], &["h_rss 120M\n"], &["120", "h_vmem=122880", "h_rss=122880"]),
            (&[("h_vmem", 100, 1), ("h_rss", 130, 1)], &["h_rss 130M\n"], &["130", "h_vmem=133120"]),
        ] {
            assert_eq!(of(shares, givers), some(expected), "{shares:?} {givers:?}");
        }
    }

    #[test]
    fn what_cannot_be_raised_is_said() {
        for (shares, givers, why) in [
            (&[][..], &[][..], "SlotMemory"),
            (&[("mem_free", 100, 1)], &[], "follows from mem_free"),
            (&[("h_vmem", 100, 1), ("mem_free", 149, 1)], &[], "follows from mem_free"),
            (&[("h_vmem", 100, 1)], &["h_vmem 100M\n"], "neither its queue nor its host has more than the 100.0 MiB"),
            (&[("h_vmem", 1000, 1)], &[], "neither its queue nor its host has more"),
        ] {
            let said = of(shares, givers).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
        let tiny = of(&[("h_vmem", 2, 4000)], &[]).unwrap_err();
        assert!(tiny.contains("for each slot"), "{tiny}");
        let says = QmasterSays { complexes: "", givers: &[] };
        let often = next(AGAIN, 2, &[("h_vmem", 100 * MIB, 1)], 1000 * MIB, &says).unwrap_err();
        assert!(often.contains("restarted 2 times already"), "{often}");
    }

    #[test]
    fn a_jsv_keeps_jobs_as_they_are() {
        let refused = |text: &str| refuses(text).unwrap_or_default();
        assert_eq!(refused("jsv_url  none\njsv_allowed_mod ac\n"), "");
        assert_eq!(refused("jsv_url  NONE\n"), "");
        assert_eq!(refused("jsv_url  script:/x\njsv_allowed_mod ac,h,l_hard\n"), "");
        for (allowed, lacks) in
            [("ac,h,i,e,o,j,M,N,p,w", "l_hard"), ("ac,l_hard", "h"), ("h,l_hard", "ac"), ("none", "l_hard")]
        {
            let said = refused(&format!("jsv_url script:/x\njsv_allowed_mod {allowed}\n"));
            assert!(said.ends_with(&format!("no {lacks}")), "{said}");
        }
    }

    proptest! {
        #[test]
        fn no_run_has_less_than_before_or_more_than_there_is(
            (share, restarts) in (10_100_u32..=100_000, 0_u32..3),
            (vmem, rss, times) in (1_u64..2000, 1_u64..2000, 1_u32..64),
            (given, limit) in (any::<Option<u16>>(), any::<Option<u16>>()),
        ) {
            let again = RunAgain { share: Percent::from_hundredths(share), most: 2 };
            let shares = [("h_vmem", vmem * MIB, times), ("h_rss", rss * MIB, times)];
            let givers = [
                given.map(|mib| format!("complex_values h_vmem={mib}M\n")).unwrap_or_default(),
                limit.map(|mib| format!("h_rss {mib}M\n")).unwrap_or_default(),
            ];
            let says = QmasterSays { complexes: COMPLEXES, givers: &givers };
            if let Ok(more) = next(again, restarts, &shares, 1500 * MIB, &says) {
                let before = vmem.min(rss) * MIB;
                let after = |name: &str, all: u64| {
                    more.amounts.iter().find(|(of, _)| of == name).map_or(all, |(_, each)| each * u64::from(times))
                };
                let now = [after("h_vmem", vmem * MIB), after("h_rss", rss * MIB)];
                prop_assert!(restarts < 2 && now[0].min(now[1]) > before);
                for (name, each) in &more.amounts {
                    let all = each * u64::from(times);
                    prop_assert!(all <= 1500 * MIB && all <= again.share.of(before).max(before + MIB));
                    match name.as_str() {
                        "h_vmem" => prop_assert!(given.is_none_or(|mib| all <= u64::from(mib) * MIB)),
                        _ => prop_assert!(limit.is_none_or(|mib| *each <= u64::from(mib) * MIB)),
                    }
                }
            }
        }
    }
}
