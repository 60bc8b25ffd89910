// SPDX-License-Identifier: GPL-2.0-or-later
//! What Slurm's functions give for a step, line by line: `step=4294967291`, `ncpus=4`, `job_cores=0-3`, `gid_count=-1`. No more is
//! granted than they say, and what they cannot say is no grant.

use std::ffi::CString;
use std::ptr::null_mut;

use jobfence::cpu_list::CpuList;
use jobfence::facts::{Fact, FactsNeeded};
use jobfence::job::{Cpus, Name};
use jobfence::schedulers::slurm::spank::api::bindings::spank_item as of;
use jobfence::schedulers::slurm::spank::api::{Spank, bindings::spank_context::S_CTX_REMOTE};
use jobfence::schedulers::slurm::spank::facts::gather;
use jobfence::schedulers::slurm::spank::grant::{StepKind, is_unallocated, of_step};

use super::slurmstepd::{Answers, answer};
use super::{is_readable, text};

pub const WORDS: &[&str] = &[
    "step=4294967291\n",
    "step=4294967292\n",
    "step=4294967290\n",
    "ncpus=65535\n",
    "job=4294901760\n",
    "tasks=4294967295\n",
    "job_cores=0-3\n",
    "step_cores=0-1\n",
    "job_mib=18446744073709551615\n",
    "on_record=3\n",
    "gids=1,2,3\n",
    "gid_count=-1\n",
    "partition=",
    "getenv_code=0\n",
    "failing=8\n",
];

pub fn run(data: &[u8]) {
    let text = text(data);
    let said = |key: &str| text.lines().filter_map(|line| line.split_once('=')).find(|(said, _)| *said == key);
    let string = |key: &str| said(key).map(|(_, value)| value);
    let signed = |key: &str| string(key).and_then(|value| value.parse::<i128>().ok());
    // As wide as the type is where it comes from.
    let number = |key: &str| signed(key).map_or(0, |value| value as u64);
    let c_string = |value: &str| CString::new(value.split('\0').next().unwrap_or_default()).ok();

    let numbers = [
        (of::S_JOB_UID, number("uid") as u32 as u64),
        (of::S_JOB_GID, number("gid") as u32 as u64),
        (of::S_JOB_NCPUS, number("ncpus") as u16 as u64),
        (of::S_JOB_ID, number("job") as u32 as u64),
        (of::S_JOB_LOCAL_TASK_COUNT, number("tasks") as u32 as u64),
        (of::S_JOB_ALLOC_MEM, number("job_mib")),
        (of::S_STEP_ALLOC_MEM, number("step_mib")),
    ];
    let lists = [(of::S_JOB_ALLOC_CORES, string("job_cores")), (of::S_STEP_ALLOC_CORES, string("step_cores"))];
    let gids: Option<Vec<u32>> =
        string("gids").map(|gids| gids.split(',').filter_map(|gid| gid.parse().ok()).collect());
    let there = gids.as_ref().map_or(0, Vec::len);
    // No more than there are, where there are any: Slurm counts its own.
    let gid_count = signed("gid_count").unwrap_or(there as i128) as i32;
    let gid_count = if gids.is_some() { gid_count.min(there as i32) } else { gid_count };
    let failing = signed("failing").map(|item| item as u32);
    let getenv_code = signed("getenv_code").map(|code| code as u32);
    answer(Answers {
        context: S_CTX_REMOTE,
        codes: failing.map(|item| (item, 3001)).into_iter().collect(),
        numbers: numbers.into(),
        strings: lists.iter().filter_map(|(item, list)| Some((*item, c_string((*list)?)?))).collect(),
        gids: gids.clone(),
        gid_count,
        environment: string("partition")
            .and_then(|value| Some((c"SLURM_JOB_PARTITION".to_owned(), c_string(value)?)))
            .into_iter()
            .collect(),
        getenv_code,
        ..Answers::default()
    });

    let spank = Spank::new(null_mut());
    let kind = StepKind::from_step_id(number("step") as u32);
    assert!(Name::new(kind.name()).is_ok());
    let on_record = string("on_record").map(|_| number("on_record") as u32);
    let cores = lists.map(|(_, list)| CpuList::parse(list.unwrap_or_default().split('\0').next().unwrap_or_default()));
    match of_step(&spank, kind, on_record) {
        Ok(grant) => {
            assert_eq!([Some(&grant.job_cores), Some(&grant.step_cores)], [cores[0].as_ref(), cores[1].as_ref()]);
            let ncpus = number("ncpus") as u16;
            let threads = |cpus: Option<Cpus>| cpus.map(|cpus| cpus.thousandths() / 1000);
            let (job, step) = (threads(grant.job_cpus), threads(grant.step_cpus));
            assert!(job != Some(0) && step.unwrap_or(0) <= job.unwrap_or(0), "{grant:?}");
            match kind {
                StepKind::Extern => assert_eq!(grant.task_cpus, None),
                StepKind::Interactive => assert_eq!(step, job),
                _ => assert!(step.is_some_and(|step| step <= ncpus.into()), "{grant:?}"),
            }
            assert!(grant.task_cpus <= grant.step_cpus, "{grant:?}");
            assert!(!grant.unallocated && is_unallocated(&spank, kind) != Ok(true), "{grant:?}");
            let on_record = on_record.filter(|count| *count > 0);
            assert!(on_record.is_none_or(|count| job.is_some_and(|job| job <= count.into())), "{grant:?}");
            for (memory, mib) in [(grant.job_memory, number("job_mib")), (grant.step_memory, number("step_mib"))] {
                assert_eq!(memory, (mib > 0).then(|| mib.saturating_mul(1 << 20)));
            }
        }
        Err(error) => {
            is_readable(&error.to_string().chars().take(2000).collect::<String>().replace(char::is_control, "?"));
            let nothing = number("ncpus") as u16 == 0 && kind != StepKind::Extern;
            assert!(nothing || failing.is_some() || cores.contains(&None), "{error}");
        }
    }

    let asked = FactsNeeded { job: true, gids: true, groups: vec!["root".to_owned()], ..FactsNeeded::default() };
    match gather(&spank, kind, &asked, None) {
        Ok(facts) => {
            let known = gids.filter(|_| gid_count > 0).map(|gids| {
                let mut all = gids[..gid_count as usize].to_vec();
                all.push(number("gid") as u32);
                all
            });
            let in_root = known.as_ref().map(|gids| gids.contains(&0));
            assert_eq!(facts.gids, known.into());
            assert_eq!(facts.group("root"), in_root);
            if let Fact::Known(partition) = &facts.partition {
                assert_eq!((kind, getenv_code), (StepKind::Batch, None));
                assert!(!partition.is_empty() && !partition.contains(char::is_control));
                assert!(string("partition").is_some_and(|said| said.starts_with(partition.as_str())));
            }
        }
        Err(error) => {
            is_readable(&error.to_string());
            let too_long = kind == StepKind::Batch && string("partition").is_some_and(|value| value.len() >= 1024);
            assert!(failing.is_some() || getenv_code.is_some() || too_long, "{error}");
        }
    }
}
