// SPDX-License-Identifier: GPL-2.0-or-later
//! The name and the resources of this node in PBS.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::Failure;
use crate::host::grantable::Grantable;

/// Checks that a node's name is safe in a command of qmgr.
pub fn name(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.[]".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return Ok(text.to_owned());
    }
    Err(format!("expected the name of a node of PBS (letters, digits and -_.[]), found {text:?}"))
}

/// MoM's name for this node: `PBS_MOM_NODE_NAME` of pbs.conf, or the host's name up to its first dot.
pub fn node() -> Result<String, Failure> {
    let conf = std::env::var_os("PBS_CONF_FILE").filter(|file| !file.is_empty());
    let conf = conf.map_or_else(|| PathBuf::from("/etc/pbs.conf"), PathBuf::from);
    if let Some(found) = configured(&conf) {
        return Ok(name(&found).map_err(|error| format!("PBS_MOM_NODE_NAME in {}: {error}", conf.display()))?);
    }
    let host = nix::unistd::gethostname()?.to_string_lossy().into_owned();
    Ok(name(host.split('.').next().unwrap_or_default())?)
}

fn configured(conf: &Path) -> Option<String> {
    let text = fs::read_to_string(conf).ok()?;
    let value = |line: &str| {
        Some(line.trim().strip_prefix("PBS_MOM_NODE_NAME")?.trim_start().strip_prefix('=')?.trim().to_owned())
    };
    text.lines().filter_map(value).next_back().filter(|value| !value.is_empty())
}

/// The resources of a PBS node, each with its value; memory in kb of 1024 bytes.
pub fn resources(grantable: &Grantable) -> [(&'static str, String); 3] {
    let kb = |bytes: u64| format!("{}kb", bytes >> 10);
    [("mem", kb(grantable.mem)), ("vmem", kb(grantable.vmem())), ("ncpus", grantable.cpus.count().to_string())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::grantable::tests::{GIB, grantable};

    #[test]
    fn the_last_line_of_pbs_conf_counts() {
        let temp = tempfile::tempdir().unwrap();
        let conf = temp.path().join("pbs.conf");
        let found = |text: &str| {
            fs::write(&conf, text).unwrap();
            configured(&conf)
        };
        assert_eq!(found("PBS_EXEC=/opt/pbs\nPBS_MOM_NODE_NAME=n1\n PBS_MOM_NODE_NAME = n2 \n").as_deref(), Some("n2"));
        for none in ["", "#PBS_MOM_NODE_NAME=n1\n", "PBS_MOM_NODE_NAMES=n1\n", "PBS_MOM_NODE_NAME=\n"] {
            assert_eq!(found(none), None, "{none:?}");
        }
        assert_eq!(configured(&temp.path().join("none")), None);
    }

    #[test]
    fn no_name_brings_a_second_command() {
        for good in ["n1", "gpu-01.example.org", "n1[0]", "a_b"] {
            assert_eq!(name(good).as_deref(), Ok(good));
        }
        for bad in ["", "n1 n2", "n1;delete", "n1\nset", "\"n1\"", "n1,n2", "@default"] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_resources_of_pbs_are_in_kb() {
        let values = |swap| resources(&grantable(swap)).map(|(name, value)| format!("{name}={value}"));
        assert_eq!(values(0), ["mem=15728640kb", "vmem=15728640kb", "ncpus=4"]);
        assert_eq!(values(GIB), ["mem=15728640kb", "vmem=16777216kb", "ncpus=4"]);
    }
}
