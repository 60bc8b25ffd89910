// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence host --gridengine --apply`: has qmaster grant what jobs can have of this host. A host that qmaster does not know becomes an
//! execution host. Values that are right already are not set again.

use std::fmt::Write as _;
use std::path::PathBuf;

use jobfence::config::Config;
use jobfence::schedulers::gridengine::amount::bytes;
use jobfence::schedulers::gridengine::complexes::value_of;
use nix::unistd::mkdtemp;

use crate::command::Failure;

/// Runs qconf with these arguments: its output, or why there is none.
type Qconf<'a> = &'a dyn Fn(&[&str]) -> Result<String, String>;

/// The name of a complex and its amount, as qconf takes them.
pub type Wanted = (String, String);

/// What jobs can have: `mem` bytes for each complex of `SlotMemory`, `gpus` for each of `SlotGPUs`, `threads` for each of `SlotCPUs`, and
/// as many slots as `CPUsPerSlot` divides the threads into.
pub fn wanted(config: &Config, mem: u64, threads: usize, gpus: Option<usize>) -> Vec<Wanted> {
    let memory = config.slot_memory.iter().map(|request| (request.name.clone(), format!("{}M", mem >> 20)));
    let gpus = gpus
        .into_iter()
        .flat_map(|count| config.slot_gpus.iter().map(move |request| (request.name.clone(), count.to_string())));
    let cpus = config.slot_cpus.iter().map(|request| (request.name.clone(), threads.to_string()));
    let thousandths = u64::try_from(threads).unwrap_or(u64::MAX).saturating_mul(1000);
    let slots = thousandths.checked_div(config.cpus_per_slot.thousandths()).unwrap_or(0);
    memory.chain(gpus).chain(cpus).chain([("slots".to_owned(), slots.to_string())]).collect()
}

/// Has qmaster grant these amounts. Returns what was done, a line for each.
pub fn apply(qconf: Qconf<'_>, host: &str, wanted: &[Wanted]) -> Result<String, Failure> {
    let complexes = qconf(&["-sc"])?;
    let is_counted = |name: &str| {
        let rows = complexes.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let found = rows.into_iter().find(|row| row.first() == Some(&name));
        found.is_some_and(|row| row.get(5).is_some_and(|word| !word.eq_ignore_ascii_case("no")))
    };
    let mut said = String::new();
    let (counted, others): (Vec<_>, Vec<_>) = wanted.iter().partition(|(name, _)| is_counted(name));
    for (name, _) in others {
        writeln!(said, "{host}: {name} is no consumable of qmaster's, and is not set")?;
    }
    let known = match qconf(&["-se", host]) {
        Ok(known) => known,
        Err(why) => {
            // Either qmaster does not know the host, or it cannot be asked.
            let hosts = qconf(&["-sel"])?;
            if hosts.lines().any(|line| line.trim().eq_ignore_ascii_case(host)) {
                return Err(why.into());
            }
            add(qconf, host)?;
            writeln!(said, "{host}: is an execution host from now on")?;
            qconf(&["-se", host])?
        }
    };
    for (name, amount) in counted {
        let before = granted(&known, name);
        if before.as_deref().is_some_and(|before| bytes(before) == bytes(amount)) {
            writeln!(said, "{host}: {name}={amount} as before")?;
            continue;
        }
        qconf(&["-mattr", "exechost", "complex_values", &format!("{name}={amount}"), host])?;
        let was = before.map_or_else(|| "nothing".to_owned(), |before| format!("{name}={before}"));
        writeln!(said, "{host}: {name}={amount}, and before {was}")?;
    }
    Ok(said)
}

/// The amount of a complex that qmaster grants, from the output of `qconf -se`.
fn granted(known: &str, name: &str) -> Option<String> {
    let values = value_of(known, "complex_values")?;
    let found = values.split([',', ' ']).find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    found.map(str::to_owned)
}

/// A line for each amount that qmaster grants beyond what there is. Slots are left out: the site may grant more CPU time than there is.
pub fn too_much(wanted: &[Wanted], known: &str) -> Vec<String> {
    let one = |(name, amount): &Wanted| {
        let before = granted(known, name).filter(|_| name != "slots")?;
        let is_more =
            bytes(&before)?.is_none_or(|before| bytes(amount).flatten().is_some_and(|amount| before > amount));
        is_more.then(|| {
            format!(
                "{name}={before} of this host is more than jobs can have ({amount}): \
                 see 'jobfence host --gridengine --apply'"
            )
        })
    };
    wanted.iter().filter_map(one).collect()
}

/// Adds an execution host, unless its execd has meanwhile done so.
fn add(qconf: Qconf<'_>, host: &str) -> Result<(), Failure> {
    let keys = ["load_scaling", "complex_values", "user_lists", "xuser_lists", "projects", "xprojects"];
    let keys = keys.iter().chain(&["usage_scaling", "report_variables"]);
    let text = format!("hostname {host}\n") + &keys.map(|key| format!("{key} NONE\n")).collect::<String>();
    let directory: PathBuf = mkdtemp("/tmp/jobfence-XXXXXX")?;
    let file = directory.join("host");
    let done = std::fs::write(&file, text).map_err(|error| format!("write {}: {error}", file.display()));
    let done = done.and_then(|()| qconf(&["-Ae", &file.to_string_lossy()]));
    let _ = std::fs::remove_dir_all(&directory);
    match done {
        Err(why) if qconf(&["-se", host]).is_err() => Err(why.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use jobfence::config::{PerSlot, SlotRequest};
    use jobfence::job::Cpus;

    use super::*;

    const COMPLEXES: &str = "#name shortcut type relop requestable consumable default urgency\n\
        gpu gpu INT <= YES JOB 0 0\nh_vmem h_vmem MEMORY <= YES YES 0 0\nmem_free mf MEMORY <= YES NO 0 0\nslots s INT <= YES YES 1 1000\n";

    #[test]
    fn a_host_has_what_its_jobs_can_have() {
        let request = |name| SlotRequest::new(name, PerSlot::AsCounted);
        let config = Config {
            slot_memory: vec![request("h_vmem"), request("mem_free")],
            slot_gpus: vec![request("gpu")],
            slot_cpus: vec![request("threads")],
            cpus_per_slot: Cpus::from_thousandths(1500),
            ..Config::default()
        };
        let of = |gpus| {
            wanted(&config, 3 << 29, 8, gpus)
                .iter()
                .map(|(name, amount)| format!("{name}={amount}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(Some(2)), ["h_vmem=1536M", "mem_free=1536M", "gpu=2", "threads=8", "slots=5"]);
        assert_eq!(of(None), ["h_vmem=1536M", "mem_free=1536M", "threads=8", "slots=5"]);
    }

    #[test]
    fn more_than_there_is_is_said() {
        let wanted = [("h_vmem", "1536M"), ("gpu", "2"), ("slots", "5")];
        let wanted = wanted.map(|(name, amount)| (name.to_owned(), amount.to_owned()));
        let of = |values: &str| too_much(&wanted, &format!("hostname n1\ncomplex_values {values}\n"));
        for fine in ["NONE", "h_vmem=1.5G,slots=50", "h_vmem=1G, \\\n    gpu=2,other=9"] {
            assert!(of(fine).is_empty(), "{fine}");
        }
        let expected = "of this host is more than jobs can have (1536M): see 'jobfence host --gridengine --apply'";
        assert_eq!(of("h_vmem=1.6G,gpu=1"), [format!("h_vmem=1.6G {expected}")]);
        assert_eq!(of("gpu=2,h_vmem=INFINITY"), [format!("h_vmem=INFINITY {expected}")]);
        assert_eq!(of("gpu=3").len(), 1);
    }

    /// Applies to a qmaster that knows this host: the result, and the commands that change something.
    fn applied(known: &str) -> (Result<String, String>, Vec<String>) {
        let (asked, host) = (RefCell::new(Vec::new()), RefCell::new(known.to_owned()));
        let qconf = |words: &[&str]| -> Result<String, String> {
            match words {
                ["-sc"] => return Ok(COMPLEXES.to_owned()),
                ["-se", name] => {
                    let found = host.borrow().clone();
                    return if found.starts_with(&format!("hostname {name}\n")) {
                        Ok(found)
                    } else {
                        Err("no such host".to_owned())
                    };
                }
                ["-sel"] => return Ok("other\n".to_owned()),
                ["-Ae", file] => *host.borrow_mut() = std::fs::read_to_string(file).unwrap(),
                _ => {}
            }
            let words: Vec<&str> = words.iter().map(|word| if word.starts_with('/') { "FILE" } else { word }).collect();
            asked.borrow_mut().push(words.join(" "));
            if known == "deny" { Err("denied".to_owned()) } else { Ok(String::new()) }
        };
        let wanted = [("h_vmem", "1536M"), ("mem_free", "1536M"), ("slots", "5")];
        let done = apply(&qconf, "n1", &wanted.map(|(name, amount)| (name.to_owned(), amount.to_owned())));
        (done.map_err(|error| error.to_string()), asked.into_inner())
    }

    #[test]
    fn what_is_so_already_is_left_alone() {
        let set = |what: &str| format!("-mattr exechost complex_values {what} n1");
        let (said, asked) = applied("hostname n1\ncomplex_values h_vmem=1.5G, \\\n               slots=4,gpu=1\n");
        assert_eq!(asked, [set("slots=5")]);
        let expected = "n1: mem_free is no consumable of qmaster's, and is not set\nn1: h_vmem=1536M as before\n\
                        n1: slots=5, and before slots=4\n";
        assert_eq!(said.as_deref(), Ok(expected));
        let (said, asked) = applied("");
        assert_eq!(asked, ["-Ae FILE".to_owned(), set("h_vmem=1536M"), set("slots=5")]);
        assert!(said.unwrap().contains("n1: is an execution host from now on\nn1: h_vmem=1536M, and before nothing\n"));
        assert_eq!(applied("deny").0.unwrap_err(), "denied");
    }
}
