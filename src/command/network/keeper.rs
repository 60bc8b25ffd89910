// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence hold` does for the network between its other work: the programs are attached while a setting needs them, and detached
//! when none does. They stay when `hold` ends, so that bounds hold and counts go on while it is restarted.

use std::collections::BTreeSet;

use jobfence::bytes::binary;
use jobfence::cgroup::network::{BoundKey, BoundValue};
use jobfence::config::{Config, Loaded, Mode};
use jobfence::error::{Error, Result};
use jobfence::fence::living::LivingStep;
use jobfence::host::Host;
use jobfence::sys::dir::Dir;
use nix::errno::Errno;

use super::attachment::{self, MOST_COUNTS, MOST_KEYS, NetworkAttachment};
use super::branches;
use super::devices::NetworkDevice;
use super::figures::JobNetwork;
use super::program::{CountKey, CountedPackets, NetworkTables, device};
use super::sampler::NetworkSampler;

/// The number of the loopback in every network namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;

/// How many bounds of ended jobs are kept.
const MOST_GONE: usize = 1 << 14;

/// The programs of this node, and what is read from their tables.
#[derive(Debug, Default)]
pub struct NetworkKeeper {
    attachment: Option<NetworkAttachment>,
    sampler: NetworkSampler,
    /// Whether programs of an earlier process were looked for, since no setting needs them.
    has_cleared: bool,
    /// The last error that was reported.
    said: Option<String>,
}

/// Whether some job is to be bounded.
pub fn is_bounded(loaded: &Loaded) -> bool {
    loaded
        .one_by_one()
        .any(|candidate| candidate.config.mode == Mode::Enforce && candidate.config.network_max.is_some())
}

fn is_counted(config: &Config) -> bool {
    config.network_accounting && config.mode != Mode::Off
}

impl NetworkKeeper {
    /// Attaches what is needed and is not there, tells the programs of interfaces, and forgets jobs that are gone.
    pub fn tend(&mut self, config: &Config, loaded: Option<&Loaded>) {
        let is_wanted = is_counted(config) || loaded.is_some_and(is_bounded);
        let done = match (is_wanted, loaded) {
            // The configuration has mistakes: all stays as it is.
            (_, None) => return,
            (true, Some(loaded)) => self.attach(config, loaded),
            (false, _) => self.clear(config),
        };
        if let Err(error) = &done {
            let error = error.to_string();
            if self.said.as_ref() != Some(&error) {
                log::error!("the network of jobs is neither counted nor bounded as configured: {error}");
            }
            self.said = Some(error);
        } else {
            self.said = None;
        }
    }

    fn attach(&mut self, config: &Config, loaded: &Loaded) -> Result<()> {
        self.has_cleared = false;
        let (host, _) = Host::read_what_there_is(config)?;
        let (dir, level) = branches::find(&host)?;
        let mut is_new = false;
        let attachment = match &mut self.attachment {
            Some(attachment) => attachment,
            none => {
                let begun = NetworkAttachment::begin(&dir)?;
                is_new = begun.1;
                none.insert(begun.0)
            }
        };
        // Before a first program is attached: one that does not know the loopback would bound it.
        let tables = &attachment.tables;
        tables.devices.set(LOOPBACK, device::LOOPBACK).map_err(of_tables)?;
        let are_devices_known = tell_of_devices(tables, &mut self.sampler);
        attachment.attach(&dir, level)?;
        if is_new {
            log::info!("what jobs send and receive is counted from now on");
        }
        if is_counted(config) {
            self.sampler.take_over(&config.run_dir);
        } else {
            self.sampler.end(config);
        }
        let forgotten = forget(&attachment.tables, &dir, &mut self.sampler, is_counted(config)).map_err(of_tables)?;
        if is_new && is_bounded(loaded) && forgotten.has_jobs {
            log::warn!(
                "jobs that run now are not bounded by NetworkMax until their next step: no program was attached before"
            );
        }
        if forgotten.unread > 0 {
            log::info!("{} of jobs that no sample has seen are in no figures", binary(forgotten.unread));
        }
        are_devices_known?;
        if forgotten.is_full {
            return Err(Error::new(
                "the table of counts is almost full: what more jobs send and receive may be missing",
            ));
        }
        Ok(())
    }

    /// No setting needs them.
    fn clear(&mut self, config: &Config) -> Result<()> {
        if self.has_cleared {
            return Ok(());
        }
        let mut is_any = false;
        if let Some(attachment) = &self.attachment {
            // The last figures, of the jobs that are known.
            let _ = self.sampler.look(config, &attachment.tables, &[]);
            is_any = attachment.end()?;
        }
        self.attachment = None;
        self.sampler.end(config);
        if detach(config)? || is_any {
            log::info!("what jobs send and receive is neither counted nor bounded any more");
        }
        // After a failure it is tried again.
        self.has_cleared = true;
        Ok(())
    }

    /// Reads what the jobs of these steps have sent and received.
    pub fn look(&mut self, config: &Config, steps: &[LivingStep<'_>]) {
        let Some(attachment) = self.attachment.as_ref().filter(|_| is_counted(config)) else { return };
        if let Err(errno) = self.sampler.look(config, &attachment.tables, steps) {
            log::debug!("{}", of_tables(errno));
        }
    }

    /// What is known of the job with this key.
    pub fn of_job(&self, key: &str) -> Option<&JobNetwork> {
        self.sampler.of_job(key)
    }
}

/// Detaches the programs of this configuration's directory. Returns whether there were any.
fn detach(config: &Config) -> Result<bool> {
    let (host, _) = Host::read_what_there_is(config)?;
    branches::existing(&host)?.map_or(Ok(false), |dir| attachment::detach(&dir))
}

/// For `jobfence reap`: detaches the programs if no setting needs them, as `hold` does where it runs. Returns whether there were any.
pub fn reap(loaded: &Loaded) -> Result<bool> {
    if is_counted(&loaded.config) || is_bounded(loaded) { Ok(false) } else { detach(&loaded.config) }
}

fn of_tables(errno: Errno) -> Error {
    Error::new("cannot use the tables of the network programs").errno(errno)
}

/// Tells the programs which interfaces there are.
fn tell_of_devices(tables: &NetworkTables, sampler: &mut NetworkSampler) -> Result<()> {
    let devices = NetworkDevice::all().map_err(Error::new)?;
    let tell = || -> Result<(), Errno> {
        let numbers: BTreeSet<u32> = devices.iter().map(|device| device.number).collect();
        for gone in tables.devices.keys::<u32>(MOST_KEYS)?.iter().filter(|number| !numbers.contains(number)) {
            tables.devices.remove(*gone)?;
        }
        for device in &devices {
            if tables.devices.get(device.number)? != Some(device.bits()) {
                tables.devices.set(device.number, device.bits())?;
            }
        }
        Ok(())
    };
    tell().map_err(of_tables)?;
    sampler.names.extend(devices.into_iter().map(|device| (device.number, (device.name, device.is_loopback))));
    Ok(())
}

/// What was found when the tables were looked through.
#[derive(Debug, Default)]
struct Forgotten {
    has_jobs: bool,
    /// Bytes that no job's figures have.
    unread: u64,
    is_full: bool,
}

/// Removes the entries of jobs that are gone, and adds jobs that the programs do not know. What has an entry had its directory before: so
/// the entries are listed first.
fn forget(
    tables: &NetworkTables,
    dir: &Dir,
    sampler: &mut NetworkSampler,
    is_counted: bool,
) -> Result<Forgotten, Errno> {
    let counts: Vec<CountKey> = tables.counts.keys(MOST_KEYS)?;
    let mut bounds: Vec<(BoundKey, BoundValue)> = Vec::new();
    for key in tables.bounds.keys(MOST_KEYS)? {
        bounds.extend(tables.bounds.get(key)?.map(|value| (key, value)));
    }
    let is_full = counts.len() > MOST_COUNTS as usize / 10 * 9;
    let Some(jobs) = branches::jobs(dir) else { return Ok(Forgotten { is_full, ..Forgotten::default() }) };
    for job in &jobs {
        tables.bounds.add::<BoundKey, BoundValue>(*job, [0, 0])?;
    }
    for gone in outdated(&bounds, &jobs, MOST_GONE) {
        tables.bounds.remove(gone)?;
    }
    let mut forgotten = Forgotten { has_jobs: !jobs.is_empty(), unread: 0, is_full };
    // If nothing is counted, what was counted belongs to no figures.
    let mut needed = if is_counted { jobs } else { BTreeSet::new() };
    needed.extend(sampler.unfinished());
    for gone in counts.iter().filter(|key| !needed.contains(&key.job)) {
        if is_counted && gone.interface != LOOPBACK {
            let counted: Option<CountedPackets> = tables.counts.get(*gone)?;
            forgotten.unread += counted.map_or(0, |counted| counted.sent.saturating_add(counted.received));
        }
        tables.counts.remove(*gone)?;
    }
    // Names of interfaces that are gone are needed while the table has them.
    let mut named: BTreeSet<u32> = tables.devices.keys(MOST_KEYS)?.into_iter().collect();
    named.extend(counts.iter().map(|key| key.interface));
    sampler.names.retain(|number, _| named.contains(number));
    Ok(forgotten)
}

/// Entries that are not needed any more. A socket may live longer than its job: bounds of jobs that are gone stay while there is room.
fn outdated(bounds: &[(BoundKey, BoundValue)], jobs: &BTreeSet<BoundKey>, most_gone: usize) -> Vec<BoundKey> {
    let gone = bounds.iter().copied().filter(|(job, _)| !jobs.contains(job));
    let (mut stay, remove): (Vec<_>, Vec<_>) = gone.partition(|(_, [rate, _])| *rate != 0);
    // Those that have sent something at last stay.
    stay.sort_unstable_by_key(|(_, [_, clock])| *clock);
    let too_many = stay.len().saturating_sub(most_gone);
    remove.into_iter().chain(stay.into_iter().take(too_many)).map(|(job, _)| job).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_ended_jobs_stay_while_there_is_room() {
        let bounds = [(1, [10, 5]), (2, [10, 9]), (3, [10, 0]), (4, [0, 0]), (5, [0, 0])];
        let jobs = [3, 5].into();
        assert_eq!(outdated(&bounds, &jobs, 2), [4]);
        assert_eq!(outdated(&bounds, &jobs, 1), [4, 1]);
        assert_eq!(outdated(&bounds, &jobs, 0), [4, 1, 2]);
    }

    #[test]
    fn a_bound_of_any_section_needs_the_programs() {
        let of = |text: &str| {
            let temp = tempfile::tempdir().unwrap();
            let file = temp.path().join("jobfence.conf");
            std::fs::write(&file, text).unwrap();
            let argument = format!("config={}", file.display());
            is_bounded(&jobfence::config::load(&[argument.as_bytes()]).unwrap())
        };
        assert!(!of("NetworkAccounting=yes\n"));
        assert!(of("NetworkMax=100M\n"));
        assert!(of("[User=bob]\nNetworkMax=100M\n"));
        assert!(!of("Mode=observe\nNetworkMax=100M\n"));
    }
}
