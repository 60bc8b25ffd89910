// SPDX-License-Identifier: GPL-2.0-or-later
//! What Slurm's controller says about a job. Users can write into that: a job's name can be "x UserId=root(0) CPU_IDs=0-63".
//!
//! So each text is requested alone, by squeue: nothing follows it. The CPUs and the memory on each node are only in `scontrol --details
//! show job` (`slurm_sprint_job_info` in src/api/job_info.c, `_sprint_job_info` in src/scontrol/info_job.c since 24.11). They are believed
//! only if exactly one part of the text is about this node: the controller's own part is always there for a job with nodes, so a part that
//! a user wrote is a second one. JSON would avoid this, but scontrol of 22.05 has none, squeue has it only where its plugins are installed,
//! and each release names the fields differently.

use std::time::{Duration, Instant};

use jobfence::cpu_list::CpuList;
use jobfence::facts::Fact;
use jobfence::hostlist::HostList;
use jobfence::sys::program::{AskedProgram, Silence};

use crate::schedulers::slurm::name::SlurmName;
use crate::table::printable;

/// A job, as far as this node is concerned.
pub struct SlurmJob {
    pub number: u32,
    pub uid: u32,
    pub partition: Fact<String>,
    pub qos: Fact<String>,
    pub account: Fact<String>,
    /// Its other name, if the release has one.
    pub sluid: Option<String>,
    pub granted: NodeAllocation,
}

/// What a job has on one node.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NodeAllocation {
    /// Hardware threads, by Slurm's numbers.
    pub threads: CpuList,
    /// Memory in MiB. `None`: not said.
    pub mib: Option<u64>,
    /// GPUs, by Slurm's numbers. `None`: it has some, but which is not understood.
    pub gpus: Option<CpuList>,
}

/// A line of squeue about a job. Users cannot write any of this.
#[derive(Debug, Clone, PartialEq, Eq)]
struct QueuedJob {
    number: u32,
    /// `12`, `12_3`, `12+1`; for pending tasks `12_[4-7]`.
    name: String,
    uid: String,
    state: String,
    nodes: String,
}

/// The number of a part of a job. For a job that ended some time ago, Slurm's accounting has it.
pub fn number(name: &SlurmName) -> Result<u32, String> {
    match queued(name) {
        // For a pending task squeue shows the array's number, which is another job's.
        Ok((job, _)) if job.nodes.is_empty() => Err(format!("job {} has no node: {}", name.job, job.state)),
        Ok((job, _)) => Ok(job.number),
        Err(why) => {
            let fields = "--format=JobIDRaw,JobID";
            let said = run("sacct", &["--noheader", "--parsable2", "--allocations", "--jobs", &name.job, fields]);
            let line = |line: &str| line.split_once('|').filter(|(_, job)| *job == name.job)?.0.parse().ok();
            said.ok().and_then(|said| said.lines().find_map(line)).ok_or(why)
        }
    }
}

/// The job's line, and the numbers of all jobs that squeue lists when asked for it by `asked_as`.
fn queued(name: &SlurmName) -> Result<(QueuedJob, Vec<u32>), String> {
    let said = squeue(&asked_as(&name.job), "%A|%i|%U|%T|%N").map_err(|error| match error {
        Silence::Failed(error) => format!("Slurm does not know job {}: {error}", name.job),
        error => format!("cannot ask Slurm: squeue: {error}; say what is granted by --cpus and --mem"),
    })?;
    let all = said.lines().map(queue_line).collect::<Option<Vec<_>>>();
    let all = all.ok_or_else(|| format!("squeue answers {said:?} for job {}", name.job))?;
    let job = find(name, &all)?;
    // For a task, squeue is asked by the task's own name from here on.
    let numbers = if job.name.contains('_') { vec![job.number] } else { all.iter().map(|job| job.number).collect() };
    Ok((job.clone(), numbers))
}

/// The job's name for squeue: that of the whole for a component of a heterogeneous job, since no release accepts `+` there.
fn asked_as(job: &str) -> String {
    job.split('+').next().unwrap_or(job).to_owned()
}

fn queue_line(line: &str) -> Option<QueuedJob> {
    let [number, name, uid, state, nodes] = line.split('|').map(str::to_owned).collect::<Vec<_>>().try_into().ok()?;
    Some(QueuedJob { number: number.parse().ok()?, name, uid, state, nodes })
}

/// The matching line: an array or a heterogeneous job has a line for each of its jobs.
fn find<'a>(name: &SlurmName, all: &'a [QueuedJob]) -> Result<&'a QueuedJob, String> {
    let is_it = |job: &&QueuedJob| if name.is_part { job.name == name.job } else { job.number == name.number };
    if let Some(job) = all.iter().find(is_it) {
        return Ok(job);
    }
    let waits = |job: &QueuedJob| name.is_part && job.name.starts_with(&format!("{}_[", name.number));
    Err(match all.iter().any(waits) {
        true => format!("job {} waits, and has no number of its own yet", name.job),
        false => format!("Slurm does not know job {}: it may have ended too long ago", name.job),
    })
}

/// Asks the controller.
pub fn ask(name: &SlurmName, node: &str) -> Result<SlurmJob, String> {
    let (job, numbers) = queued(name)?;
    let QueuedJob { number: id, name: which, uid, state, nodes } = &job;
    let uid = uid.parse().map_err(|_| format!("squeue answers {uid:?} for the user of job {which}"))?;
    let alone = |field: char| {
        let said = squeue(&asked_as(which), &format!("%A|%{field}")).ok()?;
        only(&said, *id, &numbers).map(str::to_owned)
    };
    let fact = |field| {
        // What printf(3) prints for a missing value.
        Fact::from(alone(field).map(|value| if ["(null)", "N/A"].contains(&&*value) { String::new() } else { value }))
    };
    let (partition, qos, account) = (fact('P'), fact('q'), fact('a'));
    if nodes.is_empty() {
        let facts = [("--partition", &partition), ("--qos", &qos), ("--account", &account)];
        let known = facts.iter().filter_map(|(option, fact)| {
            fact.known().filter(|name| !name.is_empty()).map(|name| format!(" {option} {}", quoted(name)))
        });
        return Err(format!(
            "job {which} has no node: {state} ({}). Which limits a job like it gets on this node: 'jobfence explain --user \
             {uid}{} --cpus NUMBER --mem SIZE'",
            alone('r').unwrap_or_default(),
            known.collect::<String>()
        ));
    }
    if !HostList::parse(nodes).is_some_and(|nodes| nodes.contains(node)) {
        return Err(format!("job {which} has nothing on node {node}, but on {nodes} (see --node)"));
    }
    if ENDED.contains(&state.as_str()) {
        return Err(format!("job {which} has ended ({state}): 'jobfence report {which}' says what it has used"));
    }
    let shown = run("scontrol", &["--all", "--details", "--oneliner", "show", "job", which]);
    let shown = shown.map_err(|error| format!("cannot ask Slurm for job {which}: scontrol: {error}"))?;
    let title = alone('j');
    let (sluid, rest) = behind_name(&shown, title.as_deref());
    let granted = granted(before_the_rest(rest), node).map_err(|several| {
        format!(
            "{several} parts of what Slurm says of job {which} speak of node {node}, and only one is Slurm's: the user \
             has written the others into a text of the job (see scontrol -d show job {which}). Leave out the job's \
             number, and say what is granted by --cpus and --mem"
        )
    })?;
    Ok(SlurmJob { number: *id, uid, partition, qos, account, sluid: sluid.map(str::to_owned), granted })
}

/// States in which a job no longer has its nodes, but Slurm still shows them (`job_state_string`).
const ENDED: [&str; 10] = [
    "COMPLETED",
    "CANCELLED",
    "FAILED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "BOOT_FAIL",
    "DEADLINE",
    "OUT_OF_MEMORY",
    "REVOKED",
];

/// A word quoted for a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    if text.chars().all(is_plain) { text.to_owned() } else { format!("'{}'", printable(text).replace('\'', "'\\''")) }
}

/// How long one of Slurm's commands may take: they wait for a busy controller by themselves (MessageTimeout of slurm.conf(5)).
const PATIENCE: Duration = Duration::from_secs(120);

/// The variables by which Slurm's commands find their cluster and authenticate. Others would select fields, jobs and clusters.
pub const KEPT: &[&str] = &["SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_SOCKET"];

fn squeue(which: &str, format: &str) -> Result<String, Silence> {
    run("squeue", &["--all", "--noheader", "--states=all", "--jobs", which, "--format", format])
}

fn run(program: &str, arguments: &[&str]) -> Result<String, Silence> {
    run_until(program, arguments, Instant::now() + PATIENCE)
}

/// The output of a Slurm command, by the deadline.
pub fn run_until(program: &str, arguments: &[&str], deadline: Instant) -> Result<String, Silence> {
    AskedProgram::new(program, arguments, KEPT).ask(deadline)
}

/// The value for a job in squeue's output, which must have one line for each of these jobs. `None`: the output is different, as if a value
/// contains a newline.
fn only<'a>(said: &'a str, id: u32, numbers: &[u32]) -> Option<&'a str> {
    let lines: Vec<(&str, &str)> =
        said.strip_suffix('\n')?.split('\n').map(|line| line.split_once('|')).collect::<Option<_>>()?;
    let is_each = lines.iter().map(|(number, _)| number.parse().ok()).eq(numbers.iter().map(|number| Some(*number)));
    let place = numbers.iter().position(|number| *number == id).filter(|_| is_each)?;
    lines.get(place).map(|(_, value)| *value)
}

/// The text behind the job's name, and the SLUID, which comes first there in releases that have one (25.11).
fn behind_name<'a>(shown: &'a str, name: Option<&str>) -> (Option<&'a str>, &'a str) {
    // Only numbers come before the name. If the name has been changed since, it does not match, or its rest is a second part.
    let rest = shown.split_once("JobName=").map(|(_, rest)| rest);
    match rest.zip(name).and_then(|(rest, name)| rest.strip_prefix(name)).filter(|rest| rest.starts_with(' ')) {
        Some(rest) => {
            let first = rest.split_whitespace().next();
            // If there are two, the job has got a new name that contains one, after its name was requested.
            let is_only = shown.matches("SLUID=").count() == 1;
            (first.and_then(|word| word.strip_prefix("SLUID=")).filter(|_| is_only), rest)
        }
        None => (None, shown),
    }
}

/// The text before the part that follows the nodes: that contains the submit line (25.11), and with it every text once more.
///
/// Slurm writes this key once, behind the nodes. If a user wrote it, too, it is not known which one is Slurm's.
fn before_the_rest(shown: &str) -> &str {
    let mut parts = shown.split("MinCPUsNode=");
    match (parts.next(), parts.next(), parts.next()) {
        (Some(nodes), Some(_), None) => nodes,
        _ => shown,
    }
}

/// What a job has on a node: for each kind of node that it has, Slurm writes `Nodes=LIST CPU_IDs=LIST Mem=MIB GRES=...`. The error is the
/// number of parts about the node, if that is not one.
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
    let gpus = gpus(words.next().and_then(|word| word.strip_prefix("GRES=")).unwrap_or_default());
    Ok(NodeAllocation { threads, mib, gpus })
}

/// The positions of GPUs in the node's order, from `gpu:a100:2(IDX:0,2),nic:1(IDX:0)`.
fn gpus(gres: &str) -> Option<CpuList> {
    let mut depth = 0;
    let is_between = |c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    };
    let places = gres.split(is_between).filter(|one| one.starts_with("gpu:")).map(|one| {
        let (_, places) = one.strip_suffix(')')?.split_once("(IDX:")?;
        CpuList::parse(places).filter(|places| !places.is_empty())
    });
    let all: Vec<String> = places.map(|places| Some(places?.to_string())).collect::<Option<_>>()?;
    if all.is_empty() { Some(CpuList::default()) } else { CpuList::parse(&all.join(",")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_NODES: &str = "  Nodes=n[1-2] CPU_IDs=0-3 Mem=200 GRES=   Nodes=n3 CPU_IDs=2 Mem=100 GRES=gpu:1(IDX:0) ";

    fn has(threads: &str, mib: u64) -> Result<NodeAllocation, usize> {
        let gpus = CpuList::parse("0").filter(|_| mib == 100).unwrap_or_default();
        Ok(NodeAllocation { threads: CpuList::parse(threads).unwrap(), mib: Some(mib), gpus: Some(gpus) })
    }

    #[test]
    fn a_job_is_read_as_scontrol_shows_it() {
        let shown =
            format!("JobId=7 JobName=a b UserId=alice(1001) Partition=gpu JOB_GRES=(null) {OF_NODES}Command=x=y\n");
        for (node, expected) in [("n3", has("2", 100)), ("n2", has("0-3", 200)), ("n4", Err(0))] {
            assert_eq!(granted(&shown, node), expected, "{node}");
        }
        // Where memory is not allocated.
        let unlimited =
            NodeAllocation { threads: CpuList::parse("0-1").unwrap(), mib: None, gpus: Some(CpuList::default()) };
        assert_eq!(granted(" Nodes=n1 CPU_IDs=0-1 Mem=0 GRES=", "n1"), Ok(unlimited));
    }

    /// Wherever a user's text is, and whatever it contains: either Slurm's own numbers, or none.
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
            // The account, if it is not checked; a comment; the submit line.
            for (name, account, comment) in [(text, "a", "c"), ("j", "a", text), (text, "a", text), ("j", text, text)] {
                let shown = format!(
                    "JobId=7 JobName={name} UserId=alice(1001) Account={account} JOB_GRES= {OF_NODES}MinCPUsNode=1 Command=/x \
                     Comment={comment} \n"
                );
                // squeue was asked before or after the job got this name, or cannot tell it.
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
        assert_eq!(only("7|a|b c\n", 7, &[7]), Some("a|b c"));
        assert_eq!(only("7|\n", 7, &[7]), Some(""));
        for said in ["", "7|a", "7|a\n7|b\n", "7|a\nb\n", "8|a\n", "77|a\n", "8|x\n7|a\n"] {
            assert_eq!(only(said, 7, &[7]), None, "{said:?}");
        }
        // For a heterogeneous job's first component, each component has a line.
        assert_eq!(only("7|a\n8|b\n", 7, &[7, 8]), Some("a"));
        for said in ["7|a\n", "7|a\n8|x\n8|b\n", "8|b\n7|a\n", "7|x\n7|a\n8|b\n"] {
            assert_eq!(only(said, 7, &[7, 8]), None, "{said:?}");
        }
    }

    #[test]
    fn a_job_is_found_among_the_lines_of_its_array() {
        let said = "14|12_1|5|RUNNING|n1\n15|12_2|5|RUNNING|n2\n12|12_[3-9%2]|5|PENDING|\n";
        let all: Vec<QueuedJob> = said.lines().map(|line| queue_line(line).unwrap()).collect();
        let of = |text: &str| find(&SlurmName::parse(text).unwrap(), &all).map(|job| job.number);
        assert_eq!([of("12_1"), of("12_2"), of("14"), of("12")], [Ok(14), Ok(15), Ok(14), Ok(12)]);
        assert_eq!(of("12_4"), Err("job 12_4 waits, and has no number of its own yet".to_owned()));
        assert!(of("13").unwrap_err().contains("Slurm does not know job 13"));
        for wrong in ["", "x", "12|a|b", "12|a|5|R|n|x", "x|a|5|R|n"] {
            assert_eq!(queue_line(wrong), None, "{wrong:?}");
        }
        let het = "12|12+0|5|RUNNING|n1\n13|12+1|5|RUNNING|n1\n";
        let all: Vec<QueuedJob> = het.lines().map(|line| queue_line(line).unwrap()).collect();
        let of = |text: &str| find(&SlurmName::parse(text).unwrap(), &all).map(|job| job.name.as_str());
        assert_eq!([of("12"), of("12+0"), of("12+1"), of("13")], [Ok("12+0"), Ok("12+0"), Ok("12+1"), Ok("12+1")]);
        assert!(of("12+2").is_err());
    }

    #[test]
    fn gpus_are_the_places_that_slurm_names() {
        let some = |list: &str| CpuList::parse(list);
        assert_eq!(gpus(""), Some(CpuList::default()));
        assert_eq!(gpus("nic:1(IDX:0),gpuless:2(IDX:3)"), Some(CpuList::default()));
        assert_eq!(gpus("gpu:1(IDX:3)"), some("3"));
        assert_eq!(gpus("gpu:a100:2(IDX:0,2),nic:1(IDX:0),gpu:h100:2(IDX:4-5)"), some("0,2,4-5"));
        for unknown in ["gpu:2", "gpu:2(IDX:N/A)", "gpu:2(IDX:)", "gpu:2(x"] {
            assert_eq!(gpus(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_name_is_a_word_for_a_shell() {
        assert_eq!([quoted("a-b.c_1"), quoted("a b"), quoted("a'b\n")], ["a-b.c_1", "'a b'", "'a'\\''b?'"]);
    }
}
