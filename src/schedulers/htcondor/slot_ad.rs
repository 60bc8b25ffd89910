// SPDX-License-Identifier: GPL-2.0-or-later
//! The ad of the slot in which a job runs. The startd writes it as the first message on the first socket that the starter inherits, before
//! it starts the starter (`Starter::execDCStarter`, the same in 23.9 and 25.14).
//!
//! A message consists of packets: a byte that is 1 in the last packet, the content's length, and the content. An ad is the number of its
//! attributes, then each attribute as `Name = value` with a zero byte behind it. Numbers are big-endian; the number of attributes has eight
//! bytes (`ReliSock`, `Stream::put`, `putClassAd`). If an attribute is there twice, the second one counts.
//!
//! The ad has what the startd itself knows, and what the schedd has told it about the user. A string value is in quotes, with a backslash
//! before each quote inside, so it cannot pass for another attribute.

use crate::error::{Error, Result};
use crate::facts::{Fact, Facts};
use crate::job::{Cpus, Id};
use crate::requests::{self, Requests};
use crate::schedulers::htcondor::asked;
use crate::schedulers::htcondor::slot_gpus::SlotGpus;
pub(super) use crate::schedulers::htcondor::value::{short, text_of};

/// No packet that HTCondor writes is longer.
const LONGEST_PACKET: usize = 1 << 20;
/// The bytes before a packet's content.
const HEADER: usize = 5;
/// No slot has so many attributes.
const MOST_ATTRIBUTES: u64 = 100_000;

/// What the startd says of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotAd {
    /// The slot's name in the pool: `slot1_3@node1`.
    pub name: String,
    /// The slot's name on this host: `slot1_3`.
    pub slot: Id,
    /// The slot's CPUs.
    pub cpus: Cpus,
    /// The slot's memory, in bytes.
    pub memory: u64,
    /// The slot's GPUs.
    pub gpus: SlotGpus,
    /// Whether the slot's START asks for `JobfenceHealthy`, which `jobfence host --htcondor` prints.
    pub asks_for_health: bool,
}

impl SlotAd {
    /// Reads the ad from the first bytes of the socket. `None`: the message is not whole yet.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>> {
        let Some(message) = message(bytes)? else { return Ok(None) };
        Self::from_attributes(&Attributes::from_message(&message)?).map(Some)
    }

    fn from_attributes(ad: &Attributes<'_>) -> Result<Self> {
        let name = ad.text("Name")?;
        let slot = Id::new(name.split('@').next().unwrap_or_default())?;
        let cpus = ad.number("Cpus")?;
        let memory = ad.number("Memory")?;
        let names = ad.find("AssignedGPUs").map(|_| ad.text("AssignedGPUs")).transpose()?;
        let count = ad.find("GPUs").map(|_| ad.number("GPUs")).transpose()?.unwrap_or_default();
        // All are amounts of one host, and `number` gives none above 1e12.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above")]
        let (thousandths, mib, count) = ((cpus * 1000.0).round() as u64, memory as u64, count.ceil() as u64);
        let (cpus, memory) = (Cpus::from_thousandths(thousandths), mib.saturating_mul(1 << 20));
        let asks_for_health =
            ad.find("Start").is_some_and(|text| text.to_ascii_lowercase().contains("jobfencehealthy"));
        Ok(Self { name, slot, cpus, memory, gpus: SlotGpus { names, count }, asks_for_health })
    }
}

/// The job that a slot runs now. The startd publishes it only after it has started the starter, so the ad that the starter gets can name
/// the previous job (`command_activate_claim` publishes it behind `spawnStarter`, in 23.9 and 25.13).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotJob {
    /// The job: `12.0`.
    pub job: Option<Id>,
    /// `GlobalJobId`, with the schedd's name. The job's user can change it: `ap.example#12.0#1764327000`.
    pub global_job: Option<String>,
    /// The user as the schedd names it: `alice@DOMAIN`. On this host the name can be another user's.
    pub user: Option<String>,
    /// `OsUser`, the user of the operating system, if the site adds it to the slot's ad (`STARTD_JOB_ATTRS`).
    pub os_user: Option<String>,
    /// Whether the job asks to run as its owner; yes unless the ad says otherwise. `None`: the value is an expression.
    pub wants_owner: Option<bool>,
    /// The accounting group, without the user's name.
    group: Fact<String>,
    /// The limits that the job requests for itself, if the site adds them to the slot's ad.
    pub asked: Requests,
}

impl SlotJob {
    /// Attributes that `parse` reads, with commas between them.
    pub fn attributes() -> String {
        let asked = requests::everywhere().map(asked::attribute).collect::<Vec<_>>().join(",");
        format!("JobId,RemoteUser,AccountingGroup,AcctGroup,OsUser,RunAsOwner,GlobalJobId,{asked}")
    }

    /// Reads what condor_status(1) prints with `-long`: one attribute to a line.
    pub fn parse(text: &str) -> Result<Self> {
        Self::from_ad(&Attributes::from_lines(text))
    }

    pub(super) fn from_ad(ad: &Attributes<'_>) -> Result<Self> {
        // The group is the user's text. Where attributes are printed, a line end in it would begin another attribute.
        if let Some((name, _)) = ad.0.iter().find(|(_, value)| value.contains('\n')) {
            return Err(Error::new("the slot's ad has an end of a line in")
                .value(short(name))
                .hint(super::NO_LINE_END));
        }
        let all: Vec<String> = ad.0.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
        if let Some(twice) = all.iter().enumerate().find_map(|(at, name)| all.get(..at)?.contains(name).then_some(name))
        {
            return Err(Error::new("the slot's ad says twice").value(short(twice)).hint(super::NO_LINE_END));
        }
        let text = |name| ad.find(name).map(|_| ad.text(name)).transpose();
        let job = text("JobId")?.map(Id::new).transpose()?;
        let (global_job, user, os_user) = (text("GlobalJobId")?, text("RemoteUser")?, text("OsUser")?);
        let wants_owner = match ad.find("RunAsOwner") {
            Some(value) if value.eq_ignore_ascii_case("false") => Some(false),
            Some(value) if !value.eq_ignore_ascii_case("true") => None,
            _ => Some(true),
        };
        let (group, acct_group) = (text("AccountingGroup")?, text("AcctGroup")?);
        let name = user.as_deref().map(|user| user.split('@').next().unwrap_or_default());
        // An ad without a job says nothing about an account.
        let group = match &job {
            Some(_) => group_of(group.as_deref().unwrap_or_default(), name, acct_group.as_deref()),
            None => Fact::Unknown,
        };
        let asked = asked::requests_in(|name| ad.find(name))?;
        Ok(Self { job, global_job, user, os_user, wants_owner, group, asked })
    }

    /// The facts that select sections of the configuration. `slot_type`: the type's name in HTCondor's configuration. `user`: the user as
    /// which the starter runs the job, if that is certain.
    pub fn facts(&self, slot_type: Option<&str>, user: Option<String>) -> Facts {
        let none = || Fact::Known(String::new());
        Facts {
            partition: none(),
            qos: none(),
            project: none(),
            pe: none(),
            account: self.group.clone(),
            vnode_types: Fact::Known(slot_type.map(str::to_owned).into_iter().collect()),
            user: Fact::from(user),
            global_job: self.global_job.clone().map_or(Fact::Unknown, Fact::Claimed),
            ..Facts::default()
        }
    }
}

/// The group of `AccountingGroup`, as condor_submit(1) writes it: `GROUP.USER`, or without a group `USER` alone; the startd adds a domain.
/// USER is the job's user, or what `accounting_group_user` says (`SubmitHash::SetAccountingGroup`, the same in 23.9.6 and 25.13.2). Both
/// can contain points. `acct_group`: `AcctGroup`, the group alone, if the ad has it.
pub(super) fn group_of(text: &str, user: Option<&str>, acct_group: Option<&str>) -> Fact<String> {
    let whole = text.split('@').next().unwrap_or_default();
    let claimed = |group: &str| Fact::Claimed(group.to_owned());
    let is_before = |group: &&str| whole.strip_prefix(group).is_some_and(|rest| rest.starts_with('.'));
    let of_user = || whole.strip_suffix(user?)?.strip_suffix('.');
    if let Some(group) = acct_group.filter(is_before).or_else(of_user) {
        return claimed(group);
    }
    match whole.split_once('.') {
        None => claimed(""),
        Some((group, name)) if !name.contains('.') => claimed(group),
        // Where the group ends is not certain.
        Some(_) => Fact::Unknown,
    }
}

/// The content of the first message; `None` if some of it is missing.
pub(super) fn message(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    let mut rest = bytes;
    loop {
        let Some((header, behind)) = rest.split_at_checked(HEADER) else { return Ok(None) };
        let (Some(is_last), Some(length)) = (header.first(), header.get(1..).and_then(number)) else { return Ok(None) };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if *is_last > 1 || length > LONGEST_PACKET {
            return Err(Error::new("this is no message of HTCondor's"));
        }
        let Some((packet, next)) = behind.split_at_checked(length) else { return Ok(None) };
        content.extend_from_slice(packet);
        if *is_last == 1 {
            return Ok(Some(content));
        }
        rest = next;
    }
}

pub(super) fn number(bytes: &[u8]) -> Option<u64> {
    (bytes.len() <= 8).then(|| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

/// The attributes of an ad, in the order in which they came.
pub(super) struct Attributes<'a>(pub(super) Vec<(&'a str, &'a str)>);

impl<'a> Attributes<'a> {
    pub(super) fn from_lines(text: &'a str) -> Self {
        let split = |line: &'a str| line.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
        Self(text.lines().filter_map(split).collect())
    }

    pub(super) fn from_message(message: &'a [u8]) -> Result<Self> {
        let cut = || Error::new("the slot's ad is cut off");
        let (count, mut rest) = message.split_at_checked(8).ok_or_else(cut)?;
        let count = number(count).filter(|count| *count <= MOST_ATTRIBUTES).ok_or_else(cut)?;
        let mut all = Vec::new();
        for _ in 0..count {
            let end = rest.iter().position(|byte| *byte == 0).ok_or_else(cut)?;
            let (text, behind) = rest.split_at(end);
            rest = behind.get(1..).unwrap_or_default();
            // An attribute that is not UTF-8, or has no `=`, is none that is needed here.
            if let Some((name, value)) = std::str::from_utf8(text).ok().and_then(|text| text.split_once('=')) {
                all.push((name.trim(), value.trim()));
            }
        }
        Ok(Self(all))
    }

    pub(super) fn find(&self, name: &str) -> Option<&'a str> {
        self.0.iter().rev().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    }

    fn get(&self, name: &'static str) -> Result<&'a str> {
        self.find(name).ok_or_else(|| Error::new("the slot's ad does not say").value(name))
    }

    fn number(&self, name: &'static str) -> Result<f64> {
        let value = self.get(name)?;
        let found = value.parse::<f64>().ok().filter(|found| (0.0..1e12).contains(found));
        found.ok_or_else(|| Error::new(format!("{name} of the slot's ad is no amount:")).value(short(value)))
    }

    fn text(&self, name: &'static str) -> Result<String> {
        let value = self.get(name)?;
        let text = text_of(value);
        text.ok_or_else(|| Error::new(format!("{name} of the slot's ad is no text:")).value(short(value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ad(attributes: &[&str]) -> Vec<u8> {
        let mut content = (attributes.len() as u64).to_be_bytes().to_vec();
        for one in attributes {
            content.extend_from_slice(one.as_bytes());
            content.push(0);
        }
        content.extend_from_slice(b"Machine\0Job\0");
        content
    }

    fn packets(content: &[u8], size: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let last = content.chunks(size).count() - 1;
        for (at, chunk) in content.chunks(size).enumerate() {
            bytes.push(u8::from(at == last));
            bytes.extend_from_slice(&u32::try_from(chunk.len()).unwrap().to_be_bytes());
            bytes.extend_from_slice(chunk);
        }
        bytes
    }

    const SLOT: &[&str] = &[
        "Cpus = 8",
        "Name = \"slot1_3@node1.example\"",
        "Memory = 512",
        "cpus = 1.5",
        "Start = ( Owner == \"x\" ) && ( Memory > 7 )",
    ];

    #[test]
    fn what_the_startd_says() {
        let found = SlotAd::parse(&packets(&ad(SLOT), 64)).unwrap().unwrap();
        let expected = SlotAd {
            name: "slot1_3@node1.example".to_owned(),
            slot: Id::new("slot1_3").unwrap(),
            cpus: Cpus::from_thousandths(1500),
            memory: 512 << 20,
            gpus: SlotGpus::default(),
            asks_for_health: false,
        };
        assert_eq!(found, expected);
        let asking = [SLOT, &["Start = ( Owner == \"x\" ) && ( JobfenceHealthy isnt false )"]].concat();
        assert!(SlotAd::parse(&packets(&ad(&asking), 64)).unwrap().unwrap().asks_for_health);
        let all = [SLOT, &["GPUs = 2", "AssignedGPUs = \"GPU-a,GPU-b\""]].concat();
        let found = SlotAd::parse(&packets(&ad(&all), 4096)).unwrap().unwrap();
        assert_eq!(found.gpus, SlotGpus { names: Some("GPU-a,GPU-b".to_owned()), count: 2 });
    }

    #[test]
    fn whose_slot_it_is() {
        let text = "JobId = \"12.0\"\nGlobalJobId = \"ap.example#12.0#7\"\nRemoteUser = \"alice@example\"\nAccountingGroup = \"group_a.b.alice@example\"\n\n";
        let found = SlotJob::parse(text).unwrap();
        assert_eq!(found.job, Some(Id::new("12.0").unwrap()));
        assert_eq!(found.user.as_deref(), Some("alice@example"));
        let facts = found.facts(Some("slot_type_1"), Some("alice".to_owned()));
        assert_eq!(facts.account, Fact::Claimed("group_a.b".to_owned()));
        assert_eq!(facts.user, Fact::Known("alice".to_owned()));
        assert_eq!(facts.global_job, Fact::Claimed("ap.example#12.0#7".to_owned()));
        assert_eq!(facts.vnode_types, Fact::Known(vec!["slot_type_1".to_owned()]));
        assert_eq!(found.facts(None, None).user, Fact::Unknown);
        let without = SlotJob::parse("JobId = \"12.0\"\n").unwrap();
        assert_eq!(without.facts(None, None).account, Fact::Claimed(String::new()));
        assert_eq!(SlotJob::parse("").unwrap().facts(None, None).account, Fact::Unknown);
        assert_eq!(SlotJob::default().facts(None, None).account, Fact::Unknown);
        SlotJob::parse("JobId = 7\n").unwrap_err();
        SlotJob::parse("AccountingGroup = \"a\nJobId = \"9.0\"\n\"\nJobId = \"12.0\"\n").unwrap_err();
    }

    #[test]
    fn an_accounting_group_in_each_form_that_condor_submit_writes() {
        let claimed = |group: &str| Fact::Claimed(group.to_owned());
        let group = |text: &str| group_of(text, Some("alice"), None);
        // accounting_group alone, also with points in it; and with accounting_group_user.
        assert_eq!(group("group_a.alice@example"), claimed("group_a"));
        assert_eq!(group("group_a.b.alice@example"), claimed("group_a.b"));
        assert_eq!(group("group_a.carol@example"), claimed("group_a"));
        assert_eq!(group("group_a.carol"), claimed("group_a"));
        // accounting_group_user alone is no group; and no accounting group is none.
        assert_eq!(group("carol@example"), claimed(""));
        assert_eq!(group(""), claimed(""));
        // The point can belong to the group or to the user.
        assert_eq!(group("group_a.b.carol@example"), Fact::Unknown);
        let with = |text: &str, acct: &str| group_of(text, Some("alice"), Some(acct));
        assert_eq!(with("group_a.b.carol@example", "group_a.b"), claimed("group_a.b"));
        assert_eq!(with("group_a.j.doe@example", "group_a"), claimed("group_a"));
        assert_eq!(with("group_b.carol@example", "group_a"), claimed("group_b"), "AcctGroup of another group");
        assert_eq!(group_of("group_a.j.doe@example", Some("j.doe"), None), claimed("group_a"));
    }

    #[test]
    fn a_message_that_is_not_whole_is_waited_for() {
        let whole = packets(&ad(SLOT), 100);
        for length in 0..whole.len() {
            assert_eq!(SlotAd::parse(&whole[..length]), Ok(None), "{length}");
        }
        assert!(SlotAd::parse(&whole).unwrap().is_some());
    }

    #[test]
    fn what_is_no_ad_is_refused() {
        let refused = |bytes: &[u8]| SlotAd::parse(bytes).unwrap_err().to_string();
        assert!(refused(b"GET / HTTP/1.0\r\n\r\n").contains("no message of HTCondor's"));
        assert!(refused(&packets(b"\0\0\0\0\0\0\0\x05A = 1\0", 99)).contains("cut off"));
        for missing in ["Cpus", "Memory", "Name"] {
            let some: Vec<&str> =
                SLOT.iter().copied().filter(|one| !one.to_lowercase().starts_with(&missing.to_lowercase())).collect();
            assert!(refused(&packets(&ad(&some), 4096)).contains(missing));
        }
        for wrong in ["AssignedGPUs = 7", "GPUs = \"1\"", "Cpus = undefined", "Cpus = -1", "Name = 7", "Memory = \"5\""]
        {
            let all = [SLOT, &[wrong]].concat();
            assert!(refused(&packets(&ad(&all), 4096)).contains("slot's ad"), "{wrong}");
        }
    }

    #[test]
    fn a_users_text_is_no_attribute() {
        let all = [SLOT, &["RemoteUser = \"a\\\"\nCpus = 99\""]].concat();
        let found = SlotAd::parse(&packets(&ad(&all), 4096)).unwrap().unwrap();
        assert_eq!(found.cpus, Cpus::from_thousandths(1500));
        let found = SlotJob::parse("RemoteUser = \"a\\\" JobId = \\\"7.0\\\"@x\"\nJobId = \"12.0\"\n").unwrap();
        assert_eq!(found.job, Some(Id::new("12.0").unwrap()));
        assert_eq!(found.user.as_deref(), Some("a\" JobId = \"7.0\"@x"));
    }
}
