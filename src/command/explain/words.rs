// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence explain` prints.

use std::path::Path;

use jobfence::bytes::mebibytes;
use jobfence::config::{Config, Key, Loaded, Mode, Resolved};
use jobfence::facts::Fact;
use jobfence::fence::explain::LimitLine;
use jobfence::job::Cpus;
use jobfence::policy::{Level, Limits, Plan};
use jobfence::requests::{REQUESTS, UserRequests};
use jobfence::sys::dir::Dir;

use super::asking::ExplainedJob;
use crate::table::printable;

/// Prints the job, and which parts of the configuration apply to it.
pub fn describe(job: &ExplainedJob<'_>, loaded: &Loaded, resolved: &Resolved) {
    let facts = &job.facts;
    let trusts = loaded.config.trust_account;
    let or_unknown = |fact: &Fact<String>| match fact.counts(trusts) {
        Some(name) if name.is_empty() => "none".to_owned(),
        Some(name) => name.clone(),
        None => match fact.said() {
            Some(name) if !name.is_empty() => format!("unknown ({}, as its user says)", printable(name)),
            _ => "unknown".to_owned(),
        },
    };
    let uid = facts.uid.known().map_or_else(|| "unknown".to_owned(), u32::to_string);
    // Facts that Slurm does not have are not printed for its jobs.
    let project = facts.project.counts(trusts).filter(|name| !name.is_empty()).map(|name| format!(", project {name}"));
    let types = facts.vnode_types.known().filter(|types| !types.is_empty());
    let types = types.map(|types| format!(", vnodes of type {}", types.join(",")));
    let pe = facts.pe.known().filter(|name| !name.is_empty()).map(|name| format!(", parallel environment {name}"));
    println!(
        "job        {} of {} (uid {uid}), partition {}, QOS {}, account {}{}{}{}",
        job.id,
        or_unknown(&facts.user),
        or_unknown(&facts.partition),
        or_unknown(&facts.qos),
        or_unknown(&facts.account),
        project.unwrap_or_default(),
        types.unwrap_or_default(),
        pe.unwrap_or_default()
    );
    let instead = |key: &str| format!(", for which {} counts", setting(key, resolved));
    let cpus = match job.grant.job_cpus {
        Some(Cpus::ZERO) => format!("0 CPUs{}", instead("ZeroCPUs")),
        Some(cpus) => cpus.in_words(),
        None => "CPUs not said".to_owned(),
    };
    let memory = match job.grant.job_memory {
        Some(memory) => format!("{} of memory", mebibytes(memory)),
        None if resolved.config.default_ram_space.is_some() => format!("memory not said{}", instead("DefaultRAMSpace")),
        None => "memory not said".to_owned(),
    };
    println!("granted    {cpus}, {memory}");
    if let Some(known_by) = &job.known_by {
        println!("known by   {known_by}");
    }
    match &loaded.file {
        Some(file) => println!("file       {}", file.display()),
        None => println!("file       none: defaults"),
    }
    match resolved.unknown_in_words() {
        Some(unknown) => println!(
            "sections   depend on what is unknown ({unknown}): of {} possibilities the strictest limits hold",
            resolved.candidates.len()
        ),
        None => {
            let sections = resolved.candidates.first().map(|only| only.sections.join(" ")).unwrap_or_default();
            println!("sections   {}", if sections.is_empty() { "none" } else { &sections });
        }
    }
}

/// The limits in words, before the files.
pub fn limits(plan: &Plan, step: &str) -> String {
    let words = |limits: &Limits| if limits.is_empty() { "no limits".to_owned() } else { limits.to_string() };
    let job = words(&plan.job);
    let of_step = if plan.step == plan.job { "the same".to_owned() } else { words(&plan.step) };
    let mut lines = vec![format!("job: {job}"), format!("step {step}: {of_step}")];
    if !plan.user.is_empty() {
        lines.insert(0, format!("all jobs of the user: {}", plan.user));
    }
    if !plan.task.is_empty() {
        lines.push(format!("each task: {}", plan.task));
    }
    format!("limits     {}", lines.join("\n           "))
}

pub fn mode_of(config: &Config) -> &'static str {
    match config.mode {
        Mode::Enforce => "Mode=enforce",
        Mode::Observe => "Mode=observe",
        Mode::Off => "Mode=off",
    }
}

/// What is written, file by file, and the present values if the directory exists; or why it cannot be written.
pub fn in_words(line: &LimitLine, found: Option<&Path>) -> Vec<String> {
    let writes = match &line.writes {
        Ok(writes) => writes,
        Err(error) => return vec![format!("cannot be written: {error}")],
    };
    let opened = found.and_then(|dir| Dir::open(dir).ok());
    let mut words = Vec::new();
    for write in writes {
        words.push(format!("{} = {}", found.unwrap_or(&line.dir).join(&write.file).display(), write.value));
        // Some files can only be written, and a device program is in no file.
        let Some(Ok(Some(value))) = opened.as_ref().map(|dir| dir.read_if_there(&write.file)) else { continue };
        let value = value.trim_end();
        let is_same = value.lines().any(|line| line == write.value);
        words.push(if is_same {
            "    now the same".to_owned()
        } else {
            format!("    now {}", value.replace('\n', "; "))
        });
    }
    words
}

/// The keys behind a limit, with their values and places; and what the job's user requested.
pub fn reasons(line: &LimitLine, resolved: &Resolved, requests: &UserRequests) -> String {
    let counts = |name: &&&'static str| match line.level {
        // The administrator's numbers for users and tasks do not depend on the job's grant.
        Level::User | Level::Task => name.ends_with(&format!("Per{}", in_key(line.level))) || OF_ALL.contains(name),
        Level::Job | Level::Step => !["PerUser", "PerTask"].iter().any(|end| name.ends_with(end)),
    };
    let keys = line.keys.iter().filter(counts).map(|name| setting(name, resolved)).filter(|text| !text.is_empty());
    let asked = REQUESTS.iter().filter(|request| request.limit == Some(line.limit));
    let asked =
        asked.filter_map(|request| Some(format!("--{}={} (the user)", request.name, request.value(&requests.job)?)));
    let all: Vec<String> = keys.chain(asked).collect();
    all.join(", ")
}

/// A key with its value and its place; empty if it is not set.
pub fn setting(name: &str, resolved: &Resolved) -> String {
    let found = jobfence::config::KEYS.iter().find(|key| key.name == name);
    let text = found.and_then(|key: &Key| {
        let value = key.get(&resolved.config)?;
        Some(format!("{}={value} ({})", key.name, resolved.origin(key)))
    });
    text.unwrap_or_default()
}

/// Keys that count at every level.
const OF_ALL: [&str; 5] = ["CPUQuotaPeriod", "CPUBurst", "CPUPolicy", "MemoryHighPercent", "Scavenger"];

fn in_key(level: Level) -> &'static str {
    if level == Level::User { "User" } else { "Task" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_come_in_words() {
        let (mut plan, job) = (Plan::default(), Limits { ram: Some(4 << 30), ..Limits::default() });
        assert_eq!(limits(&plan, "0"), "limits     job: no limits\n           step 0: the same");
        (plan.job, plan.step) = (job.clone(), job.clone());
        assert_eq!(limits(&plan, "0"), "limits     job: 4096.0 MiB of memory\n           step 0: the same");
        (plan.user, plan.step) = (job.clone(), Limits::default());
        let lines = limits(&plan, "0");
        assert!(
            lines.starts_with("limits     all jobs of the user: 4096.0 MiB of memory\n           job: "),
            "{lines}"
        );
        assert!(lines.ends_with("step 0: no limits"), "{lines}");
    }
}
