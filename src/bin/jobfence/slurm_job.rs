// SPDX-License-Identifier: GPL-2.0-or-later
//! What Slurm's controller says of a job. Users write into that, too: a job's name can be "x UserId=root(0) CPU_IDs=0-63".
//!
//! So each text is asked for alone, by squeue: nothing else stands behind it. What only `scontrol --details show job` says, the
//! CPUs and the memory on each node (`slurm_sprint_job_info` in src/api/job_info.c, `_sprint_job_info` in src/scontrol/info_job.c
//! since 24.11), is believed only where one part of the text alone speaks of this node: the controller's own part is always there
//! for a job that has nodes, so whatever a user writes is a second one. JSON would be free of this, but scontrol of 22.05 has
//! none, squeue has it where its plugins are installed, and each release calls the fields otherwise.

use std::time::{Duration, Instant};

use jobfence::cpu_list::CpuList;
use jobfence::facts::Fact;
use jobfence::hostlist::HostList;
use jobfence::sys::program::{AskedProgram, Silence};

/// A job, as far as it has to do with this node.
pub struct SlurmJob {
    pub uid: u32,
    pub partition: Fact<String>,
    pub qos: Fact<String>,
    pub account: Fact<String>,
    /// Its other name, where the release has one.
    pub sluid: Option<String>,
    pub granted: NodeAllocation,
}

/// What it has on one node.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NodeAllocation {
    /// Hardware threads, by Slurm's numbers.
    pub threads: CpuList,
    /// Memory; `None`: it is not said.
    pub mib: Option<u64>,
}

/// Asks the controller.
pub fn ask(id: u32, node: &str) -> Result<SlurmJob, String> {
    let said = squeue(&id.to_string(), "%A|%i|%U|%N").map_err(|error| match error {
        Silence::Failed(error) => format!("Slurm does not know job {id}: {error}"),
        error => format!("cannot ask Slurm: squeue: {error}; say what is granted by --cpus and --mem"),
    })?;
    // None of these is a user's to write. An array or a heterogeneous job has a line for each of its jobs.
    let mut ours = said.lines().filter_map(|line| line.strip_prefix(&format!("{id}|")));
    let unknown = || format!("Slurm does not know job {id}: it may have ended too long ago");
    let fields: Vec<&str> = ours.next().ok_or_else(unknown)?.split('|').collect();
    let [which, uid, nodes] = fields[..] else { return Err(format!("squeue answers {said:?} for job {id}")) };
    let uid = uid.parse().map_err(|_| format!("squeue answers {uid:?} for the user of job {id}"))?;
    if !HostList::parse(nodes).is_some_and(|nodes| nodes.contains(node)) {
        return Err(format!("job {id} has nothing on node {node} (see --node)"));
    }
    let alone = |field: char| {
        let said = squeue(which, &format!("%A|%{field}")).ok()?;
        only(&said, id).map(str::to_owned)
    };
    let fact = |field| {
        // As printf(3) has it where there is none.
        Fact::from(alone(field).map(|value| if ["(null)", "N/A"].contains(&&*value) { String::new() } else { value }))
    };
    let shown = run("scontrol", &["--all", "--details", "--oneliner", "show", "job", which]);
    let shown = shown.map_err(|error| format!("cannot ask Slurm for job {id}: scontrol: {error}"))?;
    let name = alone('j');
    let (sluid, rest) = behind_name(&shown, name.as_deref());
    let granted = granted(before_the_rest(rest), node).map_err(|several| {
        format!(
            "{several} parts of what Slurm says of job {id} speak of node {node}, and only one is Slurm's: the user \
             has written the others into a text of the job (see scontrol -d show job {id}). Leave out the job's \
             number, and say what is granted by --cpus and --mem"
        )
    })?;
    Ok(SlurmJob {
        uid,
        partition: fact('P'),
        qos: fact('q'),
        account: fact('a'),
        sluid: sluid.map(str::to_owned),
        granted,
    })
}

/// How long one of Slurm's commands may take: they wait for a busy controller by themselves (MessageTimeout of slurm.conf(5)).
const PATIENCE: Duration = Duration::from_secs(120);

/// By which Slurm's commands find their cluster and say who asks. Others choose fields, jobs and clusters.
const KEPT: &[&str] = &["SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_SOCKET"];

fn squeue(which: &str, format: &str) -> Result<String, Silence> {
    run("squeue", &["--all", "--noheader", "--states=all", "--jobs", which, "--format", format])
}

fn run(program: &str, arguments: &[&str]) -> Result<String, Silence> {
    run_until(program, arguments, Instant::now() + PATIENCE)
}

/// What a command of Slurm's says by the deadline.
pub fn run_until(program: &str, arguments: &[&str], deadline: Instant) -> Result<String, Silence> {
    AskedProgram::new(program, arguments, KEPT).ask(deadline)
}

/// The only value that squeue gives of a job. `None`: several may be meant, as where a value has a line's end in it.
fn only(said: &str, id: u32) -> Option<&str> {
    let (line, "") = said.split_once('\n')? else { return None };
    line.strip_prefix(&format!("{id}|"))
}

/// What follows the job's name, and the SLUID, which is the first of it in releases that have one (25.11).
fn behind_name<'a>(shown: &'a str, name: Option<&str>) -> (Option<&'a str>, &'a str) {
    // Before it stand numbers alone. A name that has been changed since begins otherwise, or the rest of it is a second part.
    let rest = shown.split_once("JobName=").map(|(_, rest)| rest);
    match rest.zip(name).and_then(|(rest, name)| rest.strip_prefix(name)).filter(|rest| rest.starts_with(' ')) {
        Some(rest) => {
            let first = rest.split_whitespace().next();
            // Two: the job has got another name, with one in it, after this one was asked for.
            let is_only = shown.matches("SLUID=").count() == 1;
            (first.and_then(|word| word.strip_prefix("SLUID=")).filter(|_| is_only), rest)
        }
        None => (None, shown),
    }
}

/// Without what follows the nodes: there stands the line by which the job was submitted (25.11), with every text in it once more.
///
/// Slurm says this key once, behind the nodes. Where a user has said it, too, which one is Slurm's cannot be known.
fn before_the_rest(shown: &str) -> &str {
    let mut parts = shown.split("MinCPUsNode=");
    match (parts.next(), parts.next(), parts.next()) {
        (Some(nodes), Some(_), None) => nodes,
        _ => shown,
    }
}

/// What a job has on a node: of each kind of node that it has, Slurm says `Nodes=LIST CPU_IDs=LIST Mem=MIB GRES=...`. The error is
/// how many parts speak of the node, where that is not one.
fn granted(shown: &str, node: &str) -> Result<NodeAllocation, usize> {
    let parts = shown.match_indices("CPU_IDs=").filter_map(|(at, key)| {
        let (before, rest) = (shown.get(..at)?, shown.get(at + key.len()..)?);
        let nodes = HostList::parse(before.split_whitespace().next_back()?.strip_prefix("Nodes=")?)?;
        nodes.contains(node).then_some(rest)
    });
    let parts: Vec<&str> = parts.collect();
    let [part] = parts[..] else { return Err(parts.len()) };
    let mut words = part.split_whitespace();
    let threads = words.next().and_then(CpuList::parse).unwrap_or_default();
    let mib = words.next().and_then(|word| word.strip_prefix("Mem=")?.parse().ok()).filter(|mib| *mib > 0);
    Ok(NodeAllocation { threads, mib })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_NODES: &str = "  Nodes=n[1-2] CPU_IDs=0-3 Mem=200 GRES=   Nodes=n3 CPU_IDs=2 Mem=100 GRES=gpu:1(IDX:0) ";

    fn has(threads: &str, mib: u64) -> Result<NodeAllocation, usize> {
        Ok(NodeAllocation { threads: CpuList::parse(threads).unwrap(), mib: Some(mib) })
    }

    #[test]
    fn a_job_is_read_as_scontrol_shows_it() {
        let shown =
            format!("JobId=7 JobName=a b UserId=alice(1001) Partition=gpu JOB_GRES=(null) {OF_NODES}Command=x=y\n");
        for (node, expected) in [("n3", has("2", 100)), ("n2", has("0-3", 200)), ("n4", Err(0))] {
            assert_eq!(granted(&shown, node), expected, "{node}");
        }
        // Where memory is not allocated.
        let unlimited = NodeAllocation { threads: CpuList::parse("0-1").unwrap(), mib: None };
        assert_eq!(granted(" Nodes=n1 CPU_IDs=0-1 Mem=0 GRES=", "n1"), Ok(unlimited));
    }

    /// Wherever a user's text stands, and whatever is in it: Slurm's own numbers, or none.
    #[test]
    fn nothing_that_a_user_writes_is_believed() {
        let forged = [
            "Nodes=n3 CPU_IDs=0-63 Mem=99999 GRES=",
            "x  Nodes=n3 CPU_IDs=0-63 Mem=99999 GRES=  ",
            "x UserId=root(0)\n   Nodes=n[1-9]\tCPU_IDs=0-63 Mem=99999",
            "Nodes=n3 CPU_IDs=0-63 JobName=y",
            "CPU_IDs=0-63 Nodes=n3 CPU_IDs=0-63",
            "Nodes=n3",
            "Nodes=n3 CPU_IDs=",
            "JobName=",
            "MinCPUsNode=",
            "x MinCPUsNode=1 Nodes=n3 CPU_IDs=0-63 Mem=99999",
            "x Nodes=n3 CPU_IDs=0-63 Mem=99999 MinCPUsNode=1",
        ];
        for text in forged {
            // The account, where nobody checks it; a comment; the line by which it was submitted.
            for (name, account, comment) in [(text, "a", "c"), ("j", "a", text), (text, "a", text), ("j", text, text)] {
                let shown = format!(
                    "JobId=7 JobName={name} UserId=alice(1001) Account={account} JOB_GRES= {OF_NODES}MinCPUsNode=1 Command=/x \
                     Comment={comment} \n"
                );
                // squeue was asked before or after the job was given this name, or cannot say it.
                for asked in [Some(name), None, Some("j"), Some(""), Some("x")] {
                    let found = granted(before_the_rest(behind_name(&shown, asked).1), "n3");
                    assert!(found == has("2", 100) || matches!(found, Err(2..)), "{shown} ({asked:?}): {found:?}");
                }
            }
            if text.contains("MinCPUsNode=") {
                continue;
            }
            let named = format!(
                "JobId=7 JobName={text} UserId=alice(1001) JOB_GRES= {OF_NODES}MinCPUsNode=1 SubmitLine=sbatch -J {text}\n"
            );
            let rest = behind_name(&named, Some(text)).1;
            assert_eq!(granted(before_the_rest(rest), "n3"), has("2", 100), "{named}");
        }
    }

    #[test]
    fn a_sluid_is_slurms_own() {
        let shown = |name: &str, more: &str| format!("JobId=7 JobName={name} {more}UserId=alice(1001)\n");
        let sluid = |shown: &str, name| behind_name(shown, name).0.map(str::to_owned);
        assert_eq!(sluid(&shown("a b", "SLUID=s1 "), Some("a b")).as_deref(), Some("s1"));
        assert_eq!(sluid(&shown("a SLUID=s2", ""), Some("a SLUID=s2")), None);
        assert_eq!(sluid(&shown("a SLUID=s2", "SLUID=s1 "), Some("a SLUID=s2")), None);
        assert_eq!(sluid(&shown("a SLUID=s2", "SLUID=s1 "), Some("a")), None);
        assert_eq!(sluid(&shown("a", "SLUID=s1 "), None), None);
    }

    #[test]
    fn only_one_value_is_one() {
        assert_eq!(only("7|a|b c\n", 7), Some("a|b c"));
        assert_eq!(only("7|\n", 7), Some(""));
        for said in ["", "7|a", "7|a\n7|b\n", "7|a\nb\n", "8|a\n", "77|a\n", "8|x\n7|a\n"] {
            assert_eq!(only(said, 7), None, "{said:?}");
        }
    }
}
