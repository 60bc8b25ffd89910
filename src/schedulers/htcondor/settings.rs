// SPDX-License-Identifier: GPL-2.0-or-later
//! HTCondor's settings for a starter, and the user as which the starter runs a job by them.
//!
//! A starter runs a job as its owner only if the site allows it, the job's `UidDomain` is this host's, and the starter trusts the
//! submitting host in that. Otherwise it runs the job as the slot's user, or as nobody (`JICShadow::initUserPriv` and `sameUidDomain`, the
//! same in 23.9.6 and 25.13.2). `UidDomain` comes from the shadow, and the startd does not have it. If the user's name has this host's
//! domain, the schedd is of that domain. If it has another domain, nothing is certain: schedds of later releases have users of other
//! domains, too.

use super::slot_ad::{Attributes, SlotJob};
use super::{JOBS_BRANCH, environment};
use crate::error::{Error, Result};
use crate::job::Id;

/// The user of jobs that do not run as their owner, if the site names no other.
pub const NOBODY: &str = "nobody";

/// The settings that a starter reads. A yes or no is `None` if it is an expression, which only the starter can evaluate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StarterSettings {
    /// `UID_DOMAIN`.
    uid_domain: String,
    /// `TRUST_UID_DOMAIN`: whether the starter trusts each submitting host.
    trusts_all: Option<bool>,
    /// `TRUST_LOCAL_UID_DOMAIN`: whether the starter trusts this host.
    trusts_this_host: Option<bool>,
    /// `STARTER_ALLOW_RUNAS_OWNER`.
    allows_owner: Option<bool>,
    /// The user of jobs that do not run as their owner.
    slot_user: String,
    /// Whether HTCondor limits the job's memory softly, or by an expression of the site's, and not to the slot's memory
    /// (`CGROUP_MEMORY_LIMIT_POLICY`).
    pub has_own_memory_limit: bool,
    /// The first directory of `BASE_CGROUP`. HTCondor makes the directories of jobs below it.
    pub branch: String,
    /// The site's variables for each job (`STARTER_JOB_ENVIRONMENT`). `None`: the answers do not have it.
    pub job_environment: Option<String>,
}

/// The user as which a starter runs a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunsAs {
    /// The user's name; `None`: it is not known.
    pub name: Option<String>,
    /// Whether the name is certain.
    pub is_certain: bool,
}

/// The host from which a job was submitted.
#[derive(Debug, Clone, Copy)]
pub struct Submitter<'a> {
    /// The host's name, as the startd has found it.
    pub host: &'a str,
    /// Whether it is this host; `None`: not known.
    pub is_this_host: Option<bool>,
}

impl StarterSettings {
    /// The texts that condor_config_val(1) expands with `-macro`. It prints a line for each.
    pub fn questions(slot: &Id) -> Vec<String> {
        let plain = slot.as_str().chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let of_slot = if plain { format!("$({}_USER)", slot.as_str().to_ascii_uppercase()) } else { String::new() };
        let named = [
            ("UID_DOMAIN", "$(UID_DOMAIN)"),
            ("TRUST_UID_DOMAIN", "$(TRUST_UID_DOMAIN)"),
            ("TRUST_LOCAL_UID_DOMAIN", "$(TRUST_LOCAL_UID_DOMAIN)"),
            ("STARTER_ALLOW_RUNAS_OWNER", "$(STARTER_ALLOW_RUNAS_OWNER)"),
            ("SLOT_USER", of_slot.as_str()),
            ("NOBODY_SLOT_USER", "$(NOBODY_SLOT_USER)"),
            ("CGROUP_MEMORY_LIMIT_POLICY", "$(CGROUP_MEMORY_LIMIT_POLICY)"),
            ("BASE_CGROUP", "$(BASE_CGROUP)"),
            (environment::LINE, "$(STARTER_JOB_ENVIRONMENT)"),
            ("LOCAL_CONFIG_DIR", "$(LOCAL_CONFIG_DIR)"),
            ("LOCAL_CONFIG_FILE", "$(LOCAL_CONFIG_FILE)"),
            ("ENABLE_PERSISTENT_CONFIG", "$(ENABLE_PERSISTENT_CONFIG)"),
        ];
        named.iter().map(|(name, text)| format!("{name} = {text}")).collect()
    }

    /// Reads the answers.
    pub fn parse(text: &str) -> Result<Self> {
        let said = Attributes::from_lines(text);
        let find = |name: &'static str| {
            said.find(name).ok_or_else(|| Error::new("HTCondor's configuration does not say").value(name))
        };
        let uid_domain = find("UID_DOMAIN")?.to_owned();
        let slot_user = match (find("SLOT_USER")?, find("NOBODY_SLOT_USER")?) {
            // The starter runs no job as root.
            ("root", _) | ("", "root" | "") => NOBODY,
            ("", user) | (user, _) => user,
        };
        let policy = find("CGROUP_MEMORY_LIMIT_POLICY")?;
        let branch = find("BASE_CGROUP")?.split('/').find(|name| !name.is_empty());
        Ok(Self {
            has_own_memory_limit: ["custom", "soft"].iter().any(|word| policy.eq_ignore_ascii_case(word)),
            branch: branch.filter(|name| !name.starts_with('.')).unwrap_or(JOBS_BRANCH).to_owned(),
            uid_domain,
            trusts_all: boolean(find("TRUST_UID_DOMAIN")?, false),
            trusts_this_host: boolean(find("TRUST_LOCAL_UID_DOMAIN")?, true),
            allows_owner: boolean(find("STARTER_ALLOW_RUNAS_OWNER")?, true),
            slot_user: slot_user.to_owned(),
            job_environment: said.find(environment::LINE).map(str::to_owned),
        })
    }

    /// The files and directories on which the answers depend. `text` also has the files that were read, which condor_config_val prints with
    /// `-config` in lines that begin with a tab. `None`: the answers can depend on more, such as a program that prints them.
    pub fn sources(text: &str) -> Option<Vec<&str>> {
        let said = Attributes::from_lines(text);
        // Settings made with condor_config_val(1) are in files that can be made later.
        (boolean(said.find("ENABLE_PERSISTENT_CONFIG")?, false) == Some(false)).then_some(())?;
        let read = text.lines().filter_map(|line| line.strip_prefix('\t')).filter(|path| !path.is_empty());
        let named = ["LOCAL_CONFIG_DIR", "LOCAL_CONFIG_FILE"].into_iter().filter_map(|name| said.find(name));
        let named = named.flat_map(|list| list.split([',', ' '])).filter(|path| !path.is_empty());
        let mut all: Vec<&str> = Vec::new();
        for path in read.chain(named) {
            // A line with a program ends with a `|`.
            (path.starts_with('/') && !path.contains(['|', '\t'])).then_some(())?;
            let directory = path.rsplit_once('/').map(|(directory, _)| directory).filter(|path| !path.is_empty());
            all.extend([Some(path), directory].into_iter().flatten());
        }
        all.sort_unstable();
        all.dedup();
        (!all.is_empty()).then_some(all)
    }

    /// The user as which the starter runs this job.
    pub fn account(&self, job: &SlotJob, submitter: Submitter<'_>) -> RunsAs {
        let Some((name, domain)) = job.user.as_deref().and_then(|user| user.rsplit_once('@')) else {
            return RunsAs::default();
        };
        let is_of_domain = domain.eq_ignore_ascii_case(&self.uid_domain).then_some(true);
        let is_believed = any(&[
            self.trusts_all,
            all(&[self.trusts_this_host, submitter.is_this_host]),
            Some(is_in_domain(submitter.host, &self.uid_domain)),
        ]);
        // From 24.7 on, the schedd can give its user another OsUser. Before that, the job's user can have written OsUser.
        let is_named = job.os_user.as_deref().is_none_or(|found| found == name).then_some(true);
        let known = |name: &str, is_certain| RunsAs { name: Some(name.to_owned()), is_certain };
        match all(&[self.allows_owner, job.wants_owner, is_of_domain, is_believed, is_named]) {
            Some(true) => known(name, true),
            Some(false) => known(&self.slot_user, true),
            None if is_of_domain.is_none() => known(&self.slot_user, false),
            None if is_named.is_none() => RunsAs::default(),
            None => known(name, false),
        }
    }
}

/// Whether a host is in a domain, as `host_in_domain` decides it (the same in 23.9.6 and 25.13.2).
fn is_in_domain(host: &str, domain: &str) -> bool {
    let Some(at) = host.len().checked_sub(domain.len()) else { return false };
    let (Some(before), Some(end)) = (host.get(..at), host.get(at..)) else { return false };
    end.eq_ignore_ascii_case(domain) && (before.is_empty() || before.ends_with('.') || domain.starts_with('.'))
}

/// The words that `string_is_boolean_param` takes, and the letters of `param_boolean_crufty`; another text is an expression.
fn boolean(text: &str, default: bool) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "" => Some(default),
        "true" | "yes" | "t" | "y" | "1" => Some(true),
        "false" | "no" | "f" | "n" | "0" => Some(false),
        _ => None,
    }
}

/// Whether all hold. `None`: not known.
fn all(said: &[Option<bool>]) -> Option<bool> {
    if said.contains(&Some(false)) { Some(false) } else { said.iter().all(Option::is_some).then_some(true) }
}

/// Whether one holds. `None`: not known.
fn any(said: &[Option<bool>]) -> Option<bool> {
    if said.contains(&Some(true)) { Some(true) } else { said.iter().all(Option::is_some).then_some(false) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: Submitter<'_> = Submitter { host: "ap.example", is_this_host: Some(true) };
    const REMOTE: Submitter<'_> = Submitter { host: "ap.elsewhere", is_this_host: Some(false) };
    const UNKNOWN: Submitter<'_> = Submitter { host: "ap.elsewhere", is_this_host: None };

    fn settings(lines: &[(&str, &str)]) -> StarterSettings {
        // As condor_config_val of 23.9.6 and 25.14 prints it where the site has set nothing but the domain.
        let stock = [
            ("UID_DOMAIN", "example"),
            ("TRUST_UID_DOMAIN", ""),
            ("TRUST_LOCAL_UID_DOMAIN", "true"),
            ("STARTER_ALLOW_RUNAS_OWNER", ""),
            ("SLOT_USER", ""),
            ("NOBODY_SLOT_USER", ""),
            ("CGROUP_MEMORY_LIMIT_POLICY", "hard"),
            ("BASE_CGROUP", "htcondor"),
        ];
        let line = |(name, value): &(&str, &str)| format!("{name} = {value}\n");
        StarterSettings::parse(&stock.iter().chain(lines).map(line).collect::<String>()).unwrap()
    }

    fn job(user: &str, more: &str) -> SlotJob {
        SlotJob::parse(&format!("JobId = \"12.0\"\nRemoteUser = \"{user}\"\n{more}")).unwrap()
    }

    fn account(lines: &[(&str, &str)], user: &str, more: &str, submitter: Submitter<'_>) -> (Option<String>, bool) {
        let RunsAs { name, is_certain } = settings(lines).account(&job(user, more), submitter);
        (name, is_certain)
    }

    fn is(name: &str, is_certain: bool) -> (Option<String>, bool) {
        (Some(name.to_owned()), is_certain)
    }

    #[test]
    fn a_user_of_another_domain_is_not_the_local_one() {
        assert_eq!(account(&[], "alice@example", "", LOCAL), is("alice", true));
        assert_eq!(account(&[], "alice@EXAMPLE", "", LOCAL), is("alice", true));
        assert_eq!(account(&[], "alice@other", "", LOCAL), is("nobody", false));
        assert_eq!(account(&[("SLOT_USER", "slot1")], "alice@other", "", LOCAL), is("slot1", false));
        assert_eq!(account(&[("NOBODY_SLOT_USER", "all")], "alice@other", "", LOCAL), is("all", false));
        let root = [("SLOT_USER", "root"), ("NOBODY_SLOT_USER", "all")];
        assert_eq!(account(&root, "alice@other", "", LOCAL), is("nobody", false));
        assert_eq!(account(&[], "alice", "", LOCAL), (None, false));
    }

    #[test]
    fn a_host_that_only_claims_the_domain_is_not_believed() {
        assert_eq!(account(&[], "alice@example", "", REMOTE), is("nobody", true));
        assert_eq!(account(&[], "alice@example", "", UNKNOWN), is("alice", false));
        assert_eq!(account(&[("TRUST_UID_DOMAIN", "True")], "alice@example", "", REMOTE), is("alice", true));
        let inside = Submitter { host: "ap.Example", ..REMOTE };
        assert_eq!(account(&[], "alice@example", "", inside), is("alice", true));
        let alike = Submitter { host: "apexample", ..REMOTE };
        assert_eq!(account(&[], "alice@example", "", alike), is("nobody", true));
        let strict = [("TRUST_LOCAL_UID_DOMAIN", "false")];
        assert_eq!(account(&strict, "alice@example", "", Submitter { host: "ap", ..LOCAL }), is("nobody", true));
    }

    #[test]
    fn the_site_and_the_job_can_have_it_run_as_the_slots_user() {
        let never = [("STARTER_ALLOW_RUNAS_OWNER", "False"), ("SLOT_USER", "slot2")];
        assert_eq!(account(&never, "alice@example", "", LOCAL), is("slot2", true));
        let sometimes = [("STARTER_ALLOW_RUNAS_OWNER", "TARGET.RunAsOwner =?= True")];
        assert_eq!(account(&sometimes, "alice@example", "", LOCAL), is("alice", false));
        assert_eq!(account(&[], "alice@example", "RunAsOwner = false\n", LOCAL), is("nobody", true));
        assert_eq!(account(&[], "alice@example", "RunAsOwner = Cpus > 1\n", LOCAL), is("alice", false));
        assert_eq!(account(&[], "alice@example", "OsUser = \"bob\"\n", LOCAL), (None, false));
        assert_eq!(account(&[], "alice@example", "OsUser = \"alice\"\n", LOCAL), is("alice", true));
    }

    #[test]
    fn a_site_that_limits_memory_otherwise_is_left_alone() {
        let stock = settings(&[]);
        assert_eq!((stock.has_own_memory_limit, stock.branch.as_str()), (false, "htcondor"));
        for (policy, is_own) in [("custom", true), ("soft", true), ("none", false), ("", false)] {
            assert_eq!(settings(&[("CGROUP_MEMORY_LIMIT_POLICY", policy)]).has_own_memory_limit, is_own, "{policy}");
        }
        for (base, branch) in [("/a/b", "a"), ("", "htcondor"), ("../x", "htcondor")] {
            assert_eq!(settings(&[("BASE_CGROUP", base)]).branch, branch);
        }
    }

    #[test]
    fn on_which_files_the_answers_hang() {
        let named = "ENABLE_PERSISTENT_CONFIG = \nLOCAL_CONFIG_DIR = /a/d,/b\nLOCAL_CONFIG_FILE = /c/e\n";
        let read = format!("\t/a/f\n\t/a/d/g\n{named}");
        let found = ["/a", "/a/d", "/a/d/g", "/a/f", "/b", "/c", "/c/e"];
        assert_eq!(StarterSettings::sources(&read).unwrap(), found);
        for wrong in [
            read.replace("CONFIG = ", "CONFIG = true"),
            read.replace("/c/e", "/c/e |"),
            read.replace("\t/a/f", "\t/bin/f |"),
            read.replace("\t/a/f", "\tf"),
            String::new(),
        ] {
            assert_eq!(StarterSettings::sources(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_condor_config_val_is_asked() {
        let asked = StarterSettings::questions(&Id::new("slot1_3").unwrap());
        assert!(asked.contains(&"SLOT_USER = $(SLOT1_3_USER)".to_owned()), "{asked:?}");
        let asked = StarterSettings::questions(&Id::new("a$(b)").unwrap());
        assert!(asked.contains(&"SLOT_USER = ".to_owned()), "{asked:?}");
        assert!(StarterSettings::parse("UID_DOMAIN = x\n").unwrap_err().to_string().contains("does not say"));
    }
}
