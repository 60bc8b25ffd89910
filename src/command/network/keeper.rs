// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence hold` does for the network between its other work: the programs are attached while a setting needs them, and detached
//! when none does. They stay when `hold` ends, so that bounds hold and counts go on while it is restarted.

use std::collections::BTreeSet;

use jobfence::cgroup::network::BoundKey;
use jobfence::config::{Config, Loaded, Mode};
use jobfence::error::{Error, Result};
use jobfence::fence::living::LivingStep;
use jobfence::host::Host;
use nix::errno::Errno;

use super::attachment::{self, MOST_COUNTS, NetworkAttachment};
use super::branches::{self, NetworkBranch};
use super::devices::NetworkDevice;
use super::figures::JobNetwork;
use super::program::{CountKey, NetworkTables};
use super::sampler::NetworkSampler;

/// More entries than a table has.
const MOST_KEYS: usize = MOST_COUNTS as usize + 1;

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
        let has_scavengers = loaded.one_by_one().any(|candidate| candidate.config.scavenger);
        let branches = branches::find(&host, has_scavengers)?;
        if self.attachment.is_none() {
            let (begun, is_new) = NetworkAttachment::begin(&branches)?;
            if is_new {
                log::info!("what jobs send and receive is counted from now on");
            }
            self.attachment = Some(begun);
        }
        let Some(attachment) = self.attachment.as_mut() else { return Ok(()) };
        // Before the first program is attached: one that does not know the loopback would bound it.
        let are_devices_known = tell_of_devices(&attachment.tables, &mut self.sampler);
        attachment.attach(&branches)?;
        self.sampler.take_over(&config.run_dir);
        forget(&attachment.tables, &branches, &self.sampler).map_err(|errno| of_tables().errno(errno))?;
        are_devices_known
    }

    /// No setting needs them.
    fn clear(&mut self, config: &Config) -> Result<()> {
        if std::mem::replace(&mut self.has_cleared, true) {
            return Ok(());
        }
        if let Some(attachment) = &self.attachment {
            // The last figures, of the jobs that are known.
            let _ = self.sampler.look(config, &attachment.tables, &[]);
        }
        self.attachment = None;
        self.sampler.end(config);
        match detach(config)? {
            0 => {}
            _ => log::info!("what jobs send and receive is neither counted nor bounded any more"),
        }
        Ok(())
    }

    /// Reads what the jobs of these steps have sent and received.
    pub fn look(&mut self, config: &Config, steps: &[LivingStep<'_>]) {
        let Some(attachment) = self.attachment.as_ref().filter(|_| is_counted(config)) else { return };
        if let Err(errno) = self.sampler.look(config, &attachment.tables, steps) {
            log::debug!("{}", of_tables().errno(errno));
        }
    }

    /// What is known of the job with this key.
    pub fn of_job(&self, key: &str) -> Option<&JobNetwork> {
        self.sampler.of_job(key)
    }
}

/// Detaches the programs of this configuration's directories. Returns from how many.
fn detach(config: &Config) -> Result<usize> {
    let (host, _) = Host::read_what_there_is(config)?;
    attachment::detach(&branches::existing(&host))
}

/// For `jobfence reap`: detaches the programs if no setting needs them, as `hold` does where it runs. Returns from how many directories.
pub fn reap(loaded: &Loaded) -> Result<usize> {
    if is_counted(&loaded.config) || is_bounded(loaded) { Ok(0) } else { detach(&loaded.config) }
}

fn of_tables() -> Error {
    Error::new("cannot use the tables of the network programs")
}

/// Tells the programs which interfaces there are.
fn tell_of_devices(tables: &NetworkTables, sampler: &mut NetworkSampler) -> Result<()> {
    let devices = NetworkDevice::all().map_err(Error::new)?;
    let tell = || {
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
    tell().map_err(|errno: Errno| of_tables().errno(errno))?;
    sampler.names.extend(devices.into_iter().map(|device| (device.number, (device.name, device.is_loopback))));
    Ok(())
}

/// Removes the entries of jobs that are gone. What has an entry had its directory before: so the entries are listed first.
fn forget(tables: &NetworkTables, branches: &[NetworkBranch], sampler: &NetworkSampler) -> Result<(), Errno> {
    let counts: Vec<CountKey> = tables.counts.keys(MOST_KEYS)?;
    let bounds: Vec<BoundKey> = tables.bounds.keys(MOST_KEYS)?;
    let (jobs, is_complete) = branches::jobs(branches);
    if !is_complete {
        return Ok(());
    }
    let mut needed: BTreeSet<u64> = jobs.into_iter().collect();
    for gone in bounds.iter().filter(|key| !needed.contains(key)) {
        tables.bounds.remove(*gone)?;
    }
    needed.extend(sampler.unfinished());
    for gone in counts.iter().filter(|key| !needed.contains(&key.job)) {
        tables.counts.remove(*gone)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
