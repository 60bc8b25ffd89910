// SPDX-License-Identifier: GPL-2.0-or-later
//! What the job reads of its fence: variables in the file `environment` of the spool, from which the shepherd makes the job's environment.
//!
//! A user may have set any of them, or have inherited them from another job: what is not limited is taken out.

use jobfence::config::{Config, Mode};
use jobfence::door::life::Seen;
use jobfence::error::Result;
use jobfence::scheduler::gridengine::spool::ENVIRONMENT;

use super::spool::Spool;

/// Writes them. `visible_gpus`: what `CUDA_VISIBLE_DEVICES` is to be, where it is for us to say.
pub fn tell(spool: &Spool, config: &Config, seen: &Seen, visible_gpus: Option<&str>) -> Result<()> {
    let before = spool.dir.read_bytes(ENVIRONMENT)?;
    spool.write(ENVIRONMENT, &with_ours(&before, config.mode, seen, visible_gpus))
}

/// A value need not be text: `qrsh` puts bytes of 0xff between the words of its command.
fn with_ours(text: &[u8], mode: Mode, seen: &Seen, visible_gpus: Option<&str>) -> Vec<u8> {
    let limit = |value: Option<String>| value.filter(|_| mode == Mode::Enforce);
    let ours = [
        ("JOBFENCE_CGROUP", seen.path.clone()),
        ("JOBFENCE_CPUS", limit(seen.cpus.map(|cpus| cpus.to_string()))),
        ("JOBFENCE_MEMORY_BYTES", limit(seen.memory.map(|bytes| bytes.to_string()))),
        ("JOBFENCE_MAX_PROCESSES", limit(seen.processes.map(|count| count.to_string()))),
    ];
    let gpus = visible_gpus.map(|gpus| [("CUDA_VISIBLE_DEVICES", gpus), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")]);
    let gpus = gpus.into_iter().flatten().map(|(name, value)| (name, Some(value.to_owned())));
    let ours: Vec<(&str, Option<String>)> = ours.into_iter().chain(gpus).collect();
    let is_ours = |line: &[u8]| {
        let name = line.split(|byte| *byte == b'=').next().unwrap_or_default();
        ours.iter().any(|(known, _)| known.as_bytes() == name)
    };
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && !is_ours(line));
    let mut all: Vec<u8> = lines.flat_map(|line| [line, b"\n"]).flatten().copied().collect();
    for (name, value) in &ours {
        if let Some(value) = value {
            all.extend(format!("{name}={value}\n").bytes());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use jobfence::job::Cpus;

    use super::super::both::seen;
    use super::*;

    #[test]
    fn what_is_not_limited_is_taken_out() {
        let seen = Seen { cpus: Some(Cpus::whole(2)), ..seen("job") };
        let text = b"A=b\xffc\nJOBFENCE_CPUS=64\nJOBFENCE_MEMORY_BYTES=1\nCUDA_VISIBLE_DEVICES=5\nB=\n";
        let seen_by = |mode, gpus| with_ours(text, mode, &seen, gpus);
        let limited = b"A=b\xffc\nCUDA_VISIBLE_DEVICES=5\nB=\nJOBFENCE_CGROUP=/x\nJOBFENCE_CPUS=2\n";
        assert_eq!(seen_by(Mode::Enforce, None), limited);
        let observed = b"A=b\xffc\nB=\nJOBFENCE_CGROUP=/x\nCUDA_VISIBLE_DEVICES=\nCUDA_DEVICE_ORDER=PCI_BUS_ID\n";
        assert_eq!(seen_by(Mode::Observe, Some("")), observed);
    }
}
