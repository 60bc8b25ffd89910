// SPDX-License-Identifier: GPL-2.0-or-later
//! Variables that tell the job of its fence, in the spool's file `environment`, from which the shepherd makes the job's environment.
//!
//! A user may have set one of them, or the job may have inherited it from another job: if the job has no such limit, it is removed.

use std::ffi::CStr;

use jobfence::cgroup::affinity::Affinity;
use jobfence::config::{Config, Mode};
use jobfence::doors::life::Seen;
use jobfence::error::Result;
use jobfence::policy::threads::{HINT, THREADS, threads};
use jobfence::schedulers::gridengine::spool::{ENVIRONMENT, SpooledJob};

use super::spool::Spool;

/// Writes the variables. `visible_gpus`: the value of `CUDA_VISIBLE_DEVICES`, if jobfence sets it.
pub fn tell(spool: &Spool, job: &SpooledJob, config: &Config, seen: &Seen, visible_gpus: Option<&str>) -> Result<()> {
    let before = spool.dir.read_bytes(ENVIRONMENT)?;
    // The shepherd binds a job to cores later, so the CPUs of this process are not those of a bound job.
    let visible = Affinity::from_pid(0).map(|cpus| cpus.count()).filter(|_| config.thread_hints && !job.is_bound);
    let hint = visible.zip(seen.limits.cpus).and_then(|(visible, cpus)| threads(cpus, visible));
    spool.write(ENVIRONMENT, &with_ours(&before, config.mode, seen, hint, visible_gpus))
}

/// The file with jobfence's variables. Values need not be UTF-8: `qrsh` puts bytes of 0xff between the words of its command.
fn with_ours(text: &[u8], mode: Mode, seen: &Seen, hint: Option<u64>, visible_gpus: Option<&str>) -> Vec<u8> {
    let limit = |value: Option<String>| value.filter(|_| mode == Mode::Enforce);
    let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    let value = |name: &CStr| lines.iter().find_map(|line| line.strip_prefix(name.to_bytes())?.strip_prefix(b"="));
    // With 'qsub -V', a job inherits the variables of another job.
    let inherited = value(HINT);
    let is_users = |name: &CStr| value(name).is_some_and(|value| inherited != Some(value));
    let has_users = THREADS.iter().any(|name| is_users(name));
    // With several slots, mpirun or the script starts several processes, and each would start as many threads as all may use.
    let is_one_slot = value(c"NSLOTS") == Some(b"1");
    let hint = limit(hint.filter(|_| is_one_slot && !has_users).map(|threads| threads.to_string()));
    let mut ours = Vec::from(seen.variables(mode));
    let hints = THREADS.iter().filter(|name| !is_users(name)).chain([&HINT]);
    ours.extend(hints.map(|name| (*name, hint.clone())));
    let gpus = visible_gpus.map(|gpus| [(c"CUDA_VISIBLE_DEVICES", gpus), (c"CUDA_DEVICE_ORDER", "PCI_BUS_ID")]);
    ours.extend(gpus.into_iter().flatten().map(|(name, value)| (name, Some(value.to_owned()))));
    let is_ours = |line: &[u8]| {
        let name = line.split(|byte| *byte == b'=').next().unwrap_or_default();
        ours.iter().any(|(known, _)| known.to_bytes() == name)
    };
    let kept = lines.iter().filter(|line| !is_ours(line));
    let mut all: Vec<u8> = kept.flat_map(|line| [line, &b"\n"[..]]).flatten().copied().collect();
    for (name, value) in &ours {
        if let Some(value) = value {
            all.extend(format!("{}={value}\n", name.to_string_lossy()).bytes());
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
        let mut seen = seen("job");
        seen.limits.cpus = Some(Cpus::whole(2));
        let text = b"A=b\xffc\nJOBFENCE_CPUS=64\nJOBFENCE_MEMORY_BYTES=1\nCUDA_VISIBLE_DEVICES=5\nB=\n";
        let seen_by = |mode, gpus| with_ours(text, mode, &seen, None, gpus);
        let limited = b"A=b\xffc\nCUDA_VISIBLE_DEVICES=5\nB=\nJOBFENCE_CGROUP=/x\nJOBFENCE_CPUS=2\n";
        assert_eq!(seen_by(Mode::Enforce, None), limited);
        let observed = b"A=b\xffc\nB=\nJOBFENCE_CGROUP=/x\nCUDA_VISIBLE_DEVICES=\nCUDA_DEVICE_ORDER=PCI_BUS_ID\n";
        assert_eq!(seen_by(Mode::Observe, Some("")), observed);
    }

    #[test]
    fn a_user_who_says_how_many_threads_is_not_told() {
        let told_with = |slots: u32, text: &str, mode, hint| {
            let all = with_ours(format!("NSLOTS={slots}\n{text}").as_bytes(), mode, &seen("job"), hint, None);
            let all = String::from_utf8(all).unwrap();
            let lines = all.lines().filter(|line| line.contains("THREADS") || line.contains("GOMAX"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let told = |text: &str, mode, hint| told_with(1, text, mode, hint);
        let ours = |number| {
            let names = THREADS.iter().chain([&HINT]).map(|name| name.to_str().unwrap());
            names.map(|name| format!("{name}={number}")).collect::<Vec<_>>()
        };
        assert_eq!(told("A=b\n", Mode::Enforce, Some(2)), ours(2));
        assert_eq!(told("A=b\n", Mode::Observe, Some(2)), [""; 0]);
        assert_eq!(told("GOMAXPROCS=7\n", Mode::Enforce, Some(2)), ["GOMAXPROCS=7"]);
        assert_eq!(told_with(2, "A=b\n", Mode::Enforce, Some(2)), [""; 0], "a job of several processes");
        // Variables of another job, and one of them that the user has changed.
        let inherited = ours(4).join("\n");
        assert_eq!(told(&inherited, Mode::Enforce, Some(2)), ours(2));
        assert_eq!(told(&inherited, Mode::Enforce, None), [""; 0]);
        let changed = inherited.replace("GOMAXPROCS=4", "GOMAXPROCS=1");
        assert_eq!(told(&changed, Mode::Enforce, Some(2)), ["GOMAXPROCS=1"]);
    }
}
