// SPDX-License-Identifier: GPL-2.0-or-later
//! The options of `jobfence explain`, and how their values are read.

use clap::Args;
use jobfence::config::{parse_cpus, parse_size};
use jobfence::cpu_list::CpuList;
use jobfence::job::{Cpus, Id};

use crate::asked::{FactOptions, RequestOptions, user};
use crate::configured::Configured;
use crate::living::job_id;

/// The steps with names.
pub const BATCH: &str = "batch";
pub const EXTERN: &str = "extern";

#[derive(Args)]
pub struct ExplainOptions {
    /// A job of Slurm's, such as 12, 12_3 or 12+1; for root any job with a fence here [default: as the options say]
    ///
    /// The CPUs, the memory, the user and the facts by which sections are chosen are then the job's own.
    #[arg(value_name = "JOBID", conflicts_with = "FactOptions", value_parser = job_id)]
    pub job: Option<Id>,
    /// CPUs (hardware threads) that the job is granted on this node
    #[arg(long, value_name = "CPUS", value_parser = cpus, conflicts_with = "job")]
    pub cpus: Option<Cpus>,
    /// Memory that the job is granted on this node, such as 200M or 4G
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "job")]
    pub mem: Option<u64>,
    /// Cores that the job is granted, by Slurm's numbers, such as 0-3,8
    #[arg(long, value_name = "LIST", value_parser = list)]
    pub cores: Option<CpuList>,
    /// GPUs that the job is granted, by Slurm's numbers, such as 0,1
    ///
    /// They are looked up in this node's gres.conf.
    #[arg(long, value_name = "LIST", value_parser = list)]
    pub gpus: Option<CpuList>,
    /// CPUs of one task, as for srun -c
    #[arg(long, value_name = "CPUS", value_parser = cpus)]
    pub cpus_per_task: Option<Cpus>,
    /// The step: batch, extern, interactive or a number [default: batch, if the job has one]
    ///
    /// If the job has no batch step here, the default is the first step that it has here.
    #[arg(long, value_name = "STEP")]
    pub step: Option<String>,
    /// The job's user, by name or number [default: the calling user]
    #[arg(long, value_name = "USER", conflicts_with = "job", value_parser = user)]
    pub user: Option<(u32, Option<String>)>,
    #[command(flatten)]
    pub facts: FactOptions,
    /// This node's name in slurm.conf, or the host's [default: as slurmd finds it]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    #[command(flatten)]
    pub asked: RequestOptions,
    /// Assume that the directories are Slurm's own wherever Slurm can have some [default: as slurm.conf says]
    ///
    /// Slurm's names that are not known before the job runs are shown as *.
    #[arg(long)]
    pub overlay: bool,
    #[command(flatten)]
    pub configured: Configured,
}

fn cpus(text: &str) -> Result<Cpus, String> {
    parse_cpus(text).ok_or_else(|| format!("expected a number of CPUs with at most three decimals, found {text:?}"))
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| format!("expected a size of at least 1M, such as 200M or 4G, found {text:?}"))
}

fn list(text: &str) -> Result<CpuList, String> {
    CpuList::parse(text).ok_or_else(|| format!("expected a list of numbers as 0-3,8, found {text:?}"))
}

/// The step as Slurm names it.
pub fn step(text: &str) -> Result<String, String> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    // Larger numbers are the steps with names (slurm.h, SLURM_MAX_NORMAL_STEP_ID).
    let number = text.parse::<u32>().ok().filter(|number| is_number && *number <= 0xffff_fff0);
    match (text, number) {
        ("batch" | "extern" | "interactive", _) => Ok(text.to_owned()),
        (_, Some(number)) => Ok(number.to_string()),
        _ => Err(format!("expected batch, extern, interactive or a number, found {text:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_those_that_slurm_has() {
        for name in ["batch", "extern", "interactive", "0", "17"] {
            assert_eq!(step(name).as_deref(), Ok(name));
        }
        assert_eq!(step("007").as_deref(), Ok("7"));
        for wrong in ["", "foo", "Batch", "-1", "+1", "1.0", "5.batch", "4294967291", "99999999999", "batch "] {
            assert!(step(wrong).unwrap_err().contains("expected batch, extern"), "{wrong}");
        }
    }
}
