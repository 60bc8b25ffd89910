// SPDX-License-Identifier: GPL-2.0-or-later
//! The ad of a job of the local universe, as the schedd writes it to the starter's standard input: `Name = value` in each line
//! (`Scheduler::spawnLocalStarter`, `sPrintAdWithSecrets`, the same in 23.9 and 25.14).
//!
//! The schedd writes the attributes that name the job's user. Most others are texts of that user, and a line end in such a text is a line
//! end here. The starter reads the ad line by line, too. So an attribute that counts must not be there twice.

use super::asked;
use super::slot_ad::{Attributes, group_of, short, text_of};
use crate::error::{Error, Result};
use crate::facts::{Fact, Facts};
use crate::launch::NotFenced;
use crate::requests::{self, Requests};

/// What jobfence reads of a local job's ad.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobAd {
    /// `Owner`: the user for starters before 24.7. In later releases this host may not know that name.
    owner: Option<String>,
    /// The user for later starters: `OsUser`, or without it the name of `User`. Earlier schedds let the job's user write `OsUser`.
    os_user: Option<String>,
    /// `AccountingGroup`, with the user's name.
    group: Option<String>,
    /// `AcctGroup`: the group alone.
    acct_group: Option<String>,
    /// `GlobalJobId`: unique among all schedds.
    pub global_job: Option<String>,
    /// The limits that the job requests for itself.
    pub asked: Requests,
}

/// A release of HTCondor, such as 25.14.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CondorRelease(u32, u32);

/// The first release whose starters run a local job as `OsUser` (`init_user_ids_from_ad`).
const HAS_OS_USER: CondorRelease = CondorRelease(24, 7);

impl CondorRelease {
    /// Reads what condor_version(1) prints: `$CondorVersion: 23.9.6 2024-09-22 …`.
    pub fn parse(text: &str) -> Option<Self> {
        let version = text.split("$CondorVersion:").nth(1)?.split_whitespace().next()?;
        let mut numbers = version.split('.').map(str::parse);
        Some(Self(numbers.next()?.ok()?, numbers.next()?.ok()?))
    }
}

impl JobAd {
    /// Reads the ad. The job's user writes most of it, so each error is [`NotFenced::Asked`].
    pub fn parse(text: &str) -> Result<Self, NotFenced> {
        Self::read(text).map_err(NotFenced::Asked)
    }

    fn read(text: &str) -> Result<Self> {
        let ad = Attributes::from_lines(text);
        let once = |name: &str| {
            if ad.0.iter().filter(|(found, _)| found.eq_ignore_ascii_case(name)).count() > 1 {
                return Err(Error::new(format!("the job's ad says {name} twice")).hint(super::NO_LINE_END));
            }
            Ok(())
        };
        let find = |name: &'static str| {
            once(name)?;
            let Some(value) = ad.find(name) else { return Ok(None) };
            let text = text_of(value);
            text.map(Some).ok_or_else(|| Error::new(format!("{name} of the job's ad is no text:")).value(short(value)))
        };
        let os_user = find("OsUser")?;
        let user = find("User")?.map(|user| without_domain(&user).to_owned());
        let (owner, global_job) = (find("Owner")?, find("GlobalJobId")?);
        let (group, acct_group) = (find("AccountingGroup")?, find("AcctGroup")?);
        for name in requests::everywhere().map(asked::attribute) {
            once(&name)?;
        }
        let asked = asked::requests_in(|name| ad.find(name))?;
        Ok(Self { owner, os_user: os_user.or(user), group, acct_group, global_job, asked })
    }

    /// The user as which the starter runs the job. `release` is called only if the releases would choose different users.
    pub fn user(&self, release: impl FnOnce() -> Result<CondorRelease>) -> Result<&str> {
        let (owner, os_user) = (self.owner.as_deref(), self.os_user.as_deref());
        let user = match (owner, os_user) {
            (Some(owner), Some(os_user)) if owner == os_user => Some(os_user),
            (None, None) => None,
            _ if release()? >= HAS_OS_USER => os_user,
            _ => owner,
        };
        user.filter(|user| !user.is_empty()).ok_or_else(|| Error::new("the job's ad does not say whose job it is"))
    }

    /// The facts that select sections of the configuration.
    pub fn facts(&self, user: &str) -> Facts {
        let none = || Fact::Known(String::new());
        Facts {
            partition: none(),
            qos: none(),
            project: none(),
            pe: none(),
            account: group_of(self.group.as_deref().unwrap_or_default(), Some(user), self.acct_group.as_deref()),
            vnode_types: Fact::Known(vec![super::LOCAL.to_owned()]),
            user: Fact::Known(user.to_owned()),
            global_job: self.global_job.clone().map_or(Fact::Unknown, Fact::Claimed),
            ..Facts::default()
        }
    }
}

/// The name `alice` of `alice@DOMAIN`.
pub fn without_domain(user: &str) -> &str {
    user.split('@').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: CondorRelease = CondorRelease(23, 9);
    const NEW: CondorRelease = CondorRelease(25, 14);

    fn user_of(text: &str, release: CondorRelease) -> Result<String, NotFenced> {
        Ok(JobAd::parse(text)?.user(|| Ok(release)).map(str::to_owned)?)
    }

    #[test]
    fn what_condor_version_prints() {
        let text = "$CondorVersion: 23.9.6 2024-09-22 BuildID: Debian-23.9.6+dfsg-2.1 $\n$CondorPlatform: X86_64 $\n";
        assert_eq!(CondorRelease::parse(text), Some(OLD));
        assert_eq!(CondorRelease::parse("$CondorVersion: 25.14.1 2026-09-01 $"), Some(NEW));
        assert!(
            CondorRelease(24, 7) >= HAS_OS_USER
                && CondorRelease(24, 6) < HAS_OS_USER
                && CondorRelease(9, 30) < HAS_OS_USER
        );
        for wrong in ["", "25.14", "$CondorVersion:", "$CondorVersion: x.y"] {
            assert_eq!(CondorRelease::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn whose_job_it_is() {
        let text = "ClusterId = 12\nOwner = \"alice\"\nUser = \"alice@example\"\nZ = 1\n";
        let never = || -> Result<CondorRelease> { panic!("it is clear") };
        assert_eq!(JobAd::parse(text).unwrap().user(never), Ok("alice"));
        // Before 24.7 the job's user can write OsUser, and on this host that name can be another user's.
        let with_domain = "OsUser = \"alice@ad\"\nOwner = \"alice\"\nUser = \"alice@example\"\n";
        assert_eq!(user_of(with_domain, OLD).as_deref(), Ok("alice"));
        assert_eq!(user_of(with_domain, NEW).as_deref(), Ok("alice@ad"));
        let missing = JobAd::parse("Owner = \"\"\nUser = \"@x\"\nClusterId = 1\n").unwrap();
        assert!(missing.user(never).unwrap_err().to_string().contains("whose job it is"));
        assert!(JobAd::parse("").unwrap().user(never).is_err());
    }

    #[test]
    fn each_release_has_its_own_attribute() {
        let text = "OsUser = \"bob\"\nOwner = \"alice\"\nUser = \"alice@example\"\n";
        assert_eq!(user_of(text, OLD).as_deref(), Ok("alice"));
        assert_eq!(user_of(text, NEW).as_deref(), Ok("bob"));
        let unknown = || Err(Error::new("condor_version does not answer"));
        JobAd::parse(text).unwrap().user(unknown).unwrap_err();
        assert_eq!(user_of("Owner = \"alice\"\nUser = \"carol@x\"\n", NEW).as_deref(), Ok("carol"));
        assert_eq!(user_of("Owner = \"alice\"\n", OLD).as_deref(), Ok("alice"));
        user_of("Owner = \"alice\"\n", NEW).unwrap_err();
    }

    #[test]
    fn an_end_of_a_line_in_a_users_text_is_no_attribute_that_counts() {
        let text = "A = \"x\nOwner = \"root\"\"\nOwner = \"alice\"\n";
        assert!(JobAd::parse(text).unwrap_err().to_string().contains("Owner twice"));
        assert!(JobAd::parse("Owner = \"alice\"\nz = \"\nuser = \"bob@x\"\n\"\nUser = \"a@x\"").is_err());
        assert!(JobAd::parse("Owner = strcat(\"a\")\n").unwrap_err().to_string().contains("no text"));
    }

    #[test]
    fn by_what_sections_are_chosen() {
        let text = "AccountingGroup = \"group_a.alice\"\nGlobalJobId = \"n#1.0#7\"\nOwner = \"alice\"\n";
        let ad = JobAd::parse(text).unwrap();
        assert_eq!(ad.global_job.as_deref(), Some("n#1.0#7"));
        let facts = ad.facts("alice");
        assert_eq!(facts.account, Fact::Claimed("group_a".to_owned()));
        assert_eq!(facts.vnode_types, Fact::Known(vec!["local".to_owned()]));
        assert_eq!(facts.user, Fact::Known("alice".to_owned()));
        assert_eq!(JobAd::parse("Owner = \"a\"\n").unwrap().facts("a").account, Fact::Claimed(String::new()));
        // As condor_submit writes accounting_group=group_a.b and accounting_group_user=carol.
        let text = "AccountingGroup = \"group_a.b.carol\"\nAcctGroup = \"group_a.b\"\nAcctGroupUser = \"carol\"\nOwner = \"alice\"\n";
        assert_eq!(JobAd::parse(text).unwrap().facts("alice").account, Fact::Claimed("group_a.b".to_owned()));
    }
}
