// SPDX-License-Identifier: GPL-2.0-or-later
//! The ad of the slot in which a job runs, as the startd sends it to the starter: the first message on the first socket that the starter
//! inherits, written before the starter is started (`Starter::execDCStarter`, the same in 23.9 and 25.14).
//!
//! A message is made of packets: a byte that is 1 in the last one, the length of what follows, and that. An ad is the number of its
//! attributes, and each as `Name = value` with a zero byte behind it. Numbers have the highest byte first; that of the attributes has
//! eight bytes (`ReliSock`, `Stream::put`, `putClassAd`). Of two attributes with one name the second one counts.
//!
//! What is in the ad is the startd's, and what the schedd has said about the user to it. A string value is in quotes, with a backslash
//! before a quote, and so it looks like no other attribute.

use crate::error::{Error, Result};
use crate::facts::{Fact, Facts};
use crate::job::{Cpus, Id};
use crate::launch::NotFenced;
use crate::printable::is_printable;
use crate::scheduler::htcondor::slot_gpus::SlotGpus;

/// No packet that HTCondor writes is longer.
const LONGEST_PACKET: usize = 1 << 20;
/// Before the content of a packet.
const HEADER: usize = 5;
/// No slot has so many attributes.
const MOST_ATTRIBUTES: u64 = 100_000;

/// What the startd says of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotAd {
    /// The slot's name in the pool: `slot1_3@node1`.
    pub name: String,
    /// The same on this host: `slot1_3`.
    pub slot: Id,
    /// The slot's CPUs.
    pub cpus: Cpus,
    /// The slot's memory, in bytes.
    pub memory: u64,
    /// The slot's GPUs.
    pub gpus: SlotGpus,
    /// `UidDomain`: users of another domain are not this host's, whatever their names.
    pub domain: Option<String>,
}

impl SlotAd {
    /// Reads it from the beginning of what the socket holds. `None`: the message is not whole yet.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>> {
        let Some(message) = message(bytes)? else { return Ok(None) };
        Self::of_attributes(&Attributes::of_message(&message)?).map(Some)
    }

    fn of_attributes(ad: &Attributes<'_>) -> Result<Self> {
        let name = ad.text("Name")?;
        let slot = Id::new(name.split('@').next().unwrap_or_default())?;
        let cpus = ad.number("Cpus")?;
        let memory = ad.number("Memory")?;
        let domain = ad.find("UidDomain").map(|_| ad.text("UidDomain")).transpose()?;
        let names = ad.find("AssignedGPUs").map(|_| ad.text("AssignedGPUs")).transpose()?;
        let count = ad.find("GPUs").map(|_| ad.number("GPUs")).transpose()?.unwrap_or_default();
        // All are amounts of one host.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above")]
        let (thousandths, mib, count) = ((cpus * 1000.0).round() as u64, memory as u64, count.ceil() as u64);
        let (cpus, memory) = (Cpus::from_thousandths(thousandths), mib.saturating_mul(1 << 20));
        Ok(Self { name, slot, cpus, memory, gpus: SlotGpus { names, count }, domain })
    }
}

/// Whose slot it is at the moment. The startd knows that of a job that it has just started, and not before: what it has sent to the starter
/// can name the job of before (`command_activate_claim` publishes it behind `spawnStarter`, in 23.9 and 25.13).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotJob {
    /// The job: `12.0`.
    pub job: Option<Id>,
    /// Whose it is, by the name that the user has in the domain of the schedd.
    pub user: Option<String>,
    /// Whether that can be another user than the one whom this host calls so. HTCondor then runs the job as a user of the slot's or as
    /// nobody, unless only the accounting has a domain of its own (`JICShadow::sameUidDomain`, `ACCOUNTING_DOMAIN`, the same in 23.9 and
    /// 25.14).
    pub is_of_other_domain: bool,
    /// The accounting group, without the user's name.
    group: Option<String>,
}

impl SlotJob {
    /// Attributes that `parse` reads.
    pub const ATTRIBUTES: &str = "JobId,RemoteUser,AccountingGroup";

    /// Reads it from what condor_status(1) prints with `-long`: an attribute in each line. `domain` is the slot's.
    ///
    /// One of the texts is the user's, and what is wrong with any of it may be the user's doing.
    pub fn parse(text: &str, domain: Option<&str>) -> Result<Self, NotFenced> {
        Self::read(text, domain).map_err(NotFenced::Asked)
    }

    fn read(text: &str, domain: Option<&str>) -> Result<Self> {
        let ad = Attributes::of_lines(text);
        // The group is its user's text, and an end of a line in it would be one here.
        let all: Vec<String> = ad.0.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
        if let Some(twice) = all.iter().enumerate().find_map(|(at, name)| all.get(..at)?.contains(name).then_some(name))
        {
            return Err(Error::new("the slot's ad says twice").value(short(twice)).hint(super::NO_LINE_END));
        }
        let text = |name| ad.find(name).map(|_| ad.text(name)).transpose();
        let job = text("JobId")?.map(Id::new).transpose()?;
        let remote = text("RemoteUser")?;
        let theirs = remote.as_deref().and_then(|user| user.split_once('@')).map(|(_, domain)| domain);
        let is_other = |(ours, theirs): (&str, &str)| !ours.eq_ignore_ascii_case(theirs);
        let is_of_other_domain = domain.zip(theirs).is_some_and(is_other);
        let user = remote.as_deref().and_then(|user| Some(user.split('@').next()?.to_owned()));
        let group = text("AccountingGroup")?.map(|group| group_of(&group, user.as_deref()).to_owned());
        Ok(Self { job, user, is_of_other_domain, group })
    }

    /// By which sections of the configuration are chosen. `slot_type` is the name by which HTCondor's configuration has the slot's type.
    pub fn facts(&self, slot_type: Option<&str>) -> Facts {
        let none = || Fact::Known(String::new());
        // Without an answer nothing is known of an account; without a group there is none. The user has written it, or left it out.
        let account = self.job.as_ref().map(|_| self.group.clone().unwrap_or_default());
        Facts {
            partition: none(),
            qos: none(),
            project: none(),
            pe: none(),
            account: account.map_or(Fact::Unknown, Fact::Claimed),
            vnode_types: Fact::Known(slot_type.map(str::to_owned).into_iter().collect()),
            user: Fact::from(self.user.clone()).if_checked(!self.is_of_other_domain),
            ..Facts::default()
        }
    }
}

/// Of `group_physics.alice@DOMAIN`, the group.
pub(super) fn group_of<'a>(text: &'a str, user: Option<&str>) -> &'a str {
    let group = text.split('@').next().unwrap_or_default();
    let without = || group.strip_suffix(user?)?.strip_suffix('.');
    without().unwrap_or(group)
}

/// The content of the first message; `None` if some of it is missing.
fn message(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
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

fn number(bytes: &[u8]) -> Option<u64> {
    (bytes.len() <= 8).then(|| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

/// The attributes of an ad, in the order in which they came.
pub(super) struct Attributes<'a>(pub(super) Vec<(&'a str, &'a str)>);

impl<'a> Attributes<'a> {
    pub(super) fn of_lines(text: &'a str) -> Self {
        let split = |line: &'a str| line.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
        Self(text.lines().filter_map(split).collect())
    }

    fn of_message(message: &'a [u8]) -> Result<Self> {
        let cut = || Error::new("the slot's ad is cut off");
        let (count, mut rest) = message.split_at_checked(8).ok_or_else(cut)?;
        let count = number(count).filter(|count| *count <= MOST_ATTRIBUTES).ok_or_else(cut)?;
        let mut all = Vec::new();
        for _ in 0..count {
            let end = rest.iter().position(|byte| *byte == 0).ok_or_else(cut)?;
            let (text, behind) = rest.split_at(end);
            rest = behind.get(1..).unwrap_or_default();
            // What is not understood is none of those that count here.
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

/// A value that is a text in quotes.
pub(super) fn text_of(value: &str) -> Option<String> {
    let text = value.strip_prefix('"')?.strip_suffix('"')?;
    let mut is_escaped = false;
    let is_meant = |c: &char| {
        is_escaped = *c == '\\' && !is_escaped;
        !is_escaped
    };
    Some(text.chars().filter(is_meant).collect())
}

pub(super) fn short(text: &str) -> String {
    text.chars().filter(|c| is_printable(*c)).take(40).collect()
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
            domain: None,
        };
        assert_eq!(found, expected);
        let all = [SLOT, &["GPUs = 2", "AssignedGPUs = \"GPU-a,GPU-b\"", "UidDomain = \"example\""]].concat();
        let found = SlotAd::parse(&packets(&ad(&all), 4096)).unwrap().unwrap();
        assert_eq!(found.domain.as_deref(), Some("example"));
        assert_eq!(found.gpus, SlotGpus { names: Some("GPU-a,GPU-b".to_owned()), count: 2 });
    }

    #[test]
    fn whose_slot_it_is() {
        let text =
            "JobId = \"12.0\"\nRemoteUser = \"alice@example\"\nAccountingGroup = \"group_a.b.alice@example\"\n\n";
        let found = SlotJob::parse(text, Some("Example")).unwrap();
        assert_eq!(found.job, Some(Id::new("12.0").unwrap()));
        assert_eq!(found.user.as_deref(), Some("alice"));
        let facts = found.facts(Some("slot_type_1"));
        assert_eq!(facts.account, Fact::Claimed("group_a.b".to_owned()));
        assert_eq!(facts.vnode_types, Fact::Known(vec!["slot_type_1".to_owned()]));
        assert_eq!(facts.user, Fact::Known("alice".to_owned()));
        let without = SlotJob::parse("JobId = \"12.0\"\n", None).unwrap();
        assert_eq!(without.facts(None).account, Fact::Claimed(String::new()));
        assert_eq!(SlotJob::parse("", Some("example")).unwrap(), SlotJob::default());
        assert_eq!(SlotJob::default().facts(None).account, Fact::Unknown);
        SlotJob::parse("JobId = 7\n", None).unwrap_err();
        SlotJob::parse("AccountingGroup = \"a\nJobId = \"9.0\"\n\"\nJobId = \"12.0\"\n", None).unwrap_err();
    }

    #[test]
    fn who_has_a_users_name_in_another_domain_is_not_that_user() {
        let text = "JobId = \"12.0\"\nRemoteUser = \"alice@elsewhere\"\nAccountingGroup = \"a.alice@elsewhere\"\n";
        let found = SlotJob::parse(text, Some("example")).unwrap();
        assert!(found.is_of_other_domain);
        let facts = found.facts(None);
        assert_eq!(facts.user, Fact::Claimed("alice".to_owned()));
        assert_eq!(facts.account, Fact::Claimed("a".to_owned()));
        // One of both is not said.
        assert!(!SlotJob::parse(text, None).unwrap().is_of_other_domain);
        assert!(!SlotJob::parse("RemoteUser = \"alice\"\n", Some("example")).unwrap().is_of_other_domain);
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
        let found = SlotJob::parse("RemoteUser = \"a\\\" JobId = \\\"7.0\\\"@x\"\nJobId = \"12.0\"\n", None).unwrap();
        assert_eq!(found.job, Some(Id::new("12.0").unwrap()));
        assert_eq!(found.user.as_deref(), Some("a\" JobId = \"7.0\""));
    }
}
