// SPDX-License-Identifier: GPL-2.0-or-later
//! Names in sections that this host or its schedulers do not know: a section with such a name never applies.

use std::path::Path;
use std::time::{Duration, Instant};

use jobfence::config::{Loaded, Named, SectionKind, nearest};
use jobfence::hostlist::HostList;
use jobfence::schedulers::slurm::conf::{Lines, value};
use jobfence::schedulers::slurm::plugins::Slurm;
use jobfence::sys::dir::Dir;
use nix::unistd::{Group, User};

use super::daemon::SchedulerDaemon;
use crate::schedulers::slurm::job::run_until;

/// How long Slurm's database may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// A line with more node names is not searched.
const MOST_NODES: usize = 100_000;

/// Prints for each section the unknown names, and what was probably meant.
pub fn say(loaded: &Loaded, slurm: Option<&Slurm>, proc: &Dir) {
    let sections: Vec<Named<'_>> = loaded.named().collect();
    let has = |kinds: &[SectionKind]| sections.iter().any(|section| kinds.contains(&section.kind()));
    let mut all = Known::default();
    if let Some(slurm) = slurm.filter(|_| has(&[SectionKind::Partition, SectionKind::Node])) {
        all.of_slurm_conf(slurm.file());
    }
    if slurm.is_some_and(Slurm::has_database) {
        all.of_slurms_database(&sections);
    }
    if has(&[SectionKind::Partition, SectionKind::Pe, SectionKind::Project]) {
        all.of_daemons(proc);
    }
    for line in sections.iter().flat_map(|section| all.unknown_of(section)) {
        println!("section        {line}");
    }
}

/// The names that exist. `None`: not known.
#[derive(Default)]
struct Known {
    /// One list for each scheduler here.
    partitions: Vec<Option<Vec<String>>>,
    /// In Slurm's database, among those that sections name; in lower case.
    qos: Option<Vec<String>>,
    accounts: Option<Vec<String>>,
    nodes: Option<Vec<String>>,
    projects: Option<Vec<String>>,
    environments: Option<Vec<String>>,
}

impl Known {
    fn of_slurm_conf(&mut self, file: &Path) {
        let lines = Lines::read(file);
        // Dynamic nodes come and go without a line.
        let is_dynamic = lines.last("MaxNodeCount").is_some();
        let of = |key: &str| -> Vec<String> {
            let lists = lines.by_line().filter_map(|line| value(line, key));
            lists.filter(|list| !list.eq_ignore_ascii_case("DEFAULT")).map(str::to_owned).collect()
        };
        self.partitions.push(Some(of("PartitionName")));
        self.nodes = (!is_dynamic).then(|| of("NodeName"));
    }

    /// Asks Slurm's database, as far as sections need it.
    fn of_slurms_database(&mut self, sections: &[Named<'_>]) {
        let ask = |kind: SectionKind, what: &str, field: &str| {
            let named = sections.iter().filter(|section| section.kind() == kind);
            let names: Vec<&str> = named.flat_map(|section| section.names()).map(String::as_str).collect();
            let command = ["--noheader", "--parsable2", "show", what, &names.join(","), field];
            let asked = (!names.is_empty()).then(|| run_until("sacctmgr", &command, Instant::now() + PATIENCE))?;
            Some(asked.ok()?.lines().map(str::to_lowercase).collect())
        };
        self.qos = ask(SectionKind::Qos, "qos", "format=name");
        self.accounts = ask(SectionKind::Account, "account", "format=account");
    }

    /// A section may be meant for any scheduler that runs here.
    fn of_daemons(&mut self, proc: &Dir) {
        if let Some(execd) = SchedulerDaemon::find(proc, "sge_execd") {
            let ask = |option: &str| listed(execd.ask(&["qconf", option]));
            self.projects = ask("-sprjl");
            self.environments = ask("-spl");
            self.partitions.push(ask("-sql"));
        }
        if let Some(mom) = SchedulerDaemon::find(proc, "pbs_mom") {
            self.partitions.push(mom.ask(&["qstat", "-Q", "-f"]).ok().map(|text| queues(&text)));
        }
    }

    /// A sentence for each unknown name of a section.
    fn unknown_of(&self, section: &Named<'_>) -> Vec<String> {
        let header = section.header();
        let sentence = |who: &str, what: &str, name: &str, near: Option<&str>| {
            let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            format!("{header}: {who} no {what} {name}{near}")
        };
        let among = |known: Option<&[String]>, what: &str| -> Vec<String> {
            let Some(known) = known else { return Vec::new() };
            let missing = section.names().iter().filter(|name| !known.contains(name));
            let near = |name: &str| nearest(name, known.iter().map(String::as_str));
            missing.map(|name| sentence("there is", what, name, near(name))).collect()
        };
        match section.kind() {
            SectionKind::User => {
                let is_there = |name: &str| !matches!(User::from_name(name), Ok(None));
                local(section, is_there, "passwd", |name, near| sentence("this host knows", "user", name, near))
            }
            SectionKind::Group => {
                let is_there = |name: &str| !matches!(Group::from_name(name), Ok(None));
                local(section, is_there, "group", |name, near| sentence("this host knows", "group", name, near))
            }
            SectionKind::Partition => {
                let all: Option<Vec<Vec<String>>> = self.partitions.iter().cloned().collect();
                among(all.filter(|all| !all.is_empty()).map(|all| all.concat()).as_deref(), "partition or queue")
            }
            SectionKind::Qos => among(self.qos.as_deref(), "QOS"),
            SectionKind::Account => among(self.accounts.as_deref(), "account"),
            SectionKind::Project => among(self.projects.as_deref(), "project"),
            SectionKind::Pe => among(self.environments.as_deref(), "parallel environment"),
            SectionKind::Node => {
                let is_named = |list: &String| {
                    // A list that is too long to search may contain any.
                    HostList::parse(list)
                        .and_then(|list| list.names(MOST_NODES))
                        .is_none_or(|names| names.iter().any(|name| section.names_node(name)))
                };
                match &self.nodes {
                    Some(lists) if !lists.iter().any(is_named) => {
                        vec![format!("{header}: slurm.conf has no such node")]
                    }
                    _ => Vec::new(),
                }
            }
            SectionKind::VnodeType => Vec::new(),
        }
    }
}

/// The output of qconf(1), one name in each line. It fails if there are none, with `no project list defined` (`show_object_list`).
fn listed(said: Result<String, String>) -> Option<Vec<String>> {
    match said {
        Ok(text) => Some(text.split_whitespace().map(str::to_owned).collect()),
        Err(why) => (why.contains(": no ") && why.trim_end().ends_with(" list defined")).then(Vec::new),
    }
}

/// The names in the output of OpenPBS's `qstat -Q -f`: a line for each queue, followed by attributes in lines that begin with a blank.
fn queues(text: &str) -> Vec<String> {
    let queue = |line: &str| line.strip_prefix("Queue: ").map(|name| name.trim().to_owned());
    text.lines().filter_map(queue).collect()
}

/// Users and groups that this host's database does not know. Similar names are searched for only in the local file: a server may have very
/// many.
fn local(
    section: &Named<'_>,
    is_there: impl Fn(&str) -> bool,
    file: &str,
    sentence: impl Fn(&str, Option<&str>) -> String,
) -> Vec<String> {
    let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let missing = section.names().iter().filter(|name| !is_number(name) && !is_there(name));
    let text = std::fs::read_to_string(Path::new("/etc").join(file)).unwrap_or_default();
    let names = || text.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name);
    missing.map(|name| sentence(name, nearest(name, names()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qconf_fails_where_there_is_none() {
        assert_eq!(listed(Ok("all.q\nlong.q\n".to_owned())), Some(vec!["all.q".to_owned(), "long.q".to_owned()]));
        assert_eq!(listed(Err("qconf -sprjl: no project list defined\n".to_owned())), Some(Vec::new()));
        for unknown in ["qconf -sprjl: error: commlib error: got select error", "qconf -sprjl: it does not answer"] {
            assert_eq!(listed(Err(unknown.to_owned())), None, "{unknown}");
        }
    }

    #[test]
    fn queues_are_those_of_qstat() {
        let text = "Queue: workq\n    queue_type = Execution\n    total_jobs = 0\n    state_count = Transit:0 Queued:0 Held:0 \n    \
                    route_destinations = a,\n\tQueue: b\n    enabled = True\n\nQueue: a-very-long-name_of.a\n    started = True\n\n";
        assert_eq!(queues(text), ["workq", "a-very-long-name_of.a"]);
        assert!(queues("").is_empty());
    }
}
