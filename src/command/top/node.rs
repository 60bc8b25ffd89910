// SPDX-License-Identifier: GPL-2.0-or-later
//! The node itself: what it has and uses, for the first line of `jobfence top`.

use jobfence::host::Host;
use jobfence::sys::dir::Dir;

use crate::host::cpus::UsableCpus;
use crate::host::memory::of_meminfo;
use crate::table::printable;

/// The node's figures. `None`: not known.
#[derive(Debug, Clone, Default)]
pub struct NodeNow {
    pub name: String,
    /// The load of the last minute.
    pub load: Option<String>,
    pub memory_used: Option<u64>,
    pub memory: Option<u64>,
    /// How many hardware threads jobs can have.
    pub cpus: Option<usize>,
}

impl NodeNow {
    /// Reads the node's figures, from four files of the kernel.
    pub fn read(host: &Host) -> Self {
        let name = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
        let load = host.proc.read("loadavg").ok();
        let meminfo = host.proc.read("meminfo").unwrap_or_default();
        let of = |name| of_meminfo(&meminfo, name).ok();
        let memory = of("MemTotal");
        let cpus = Dir::open("/sys/devices/system/cpu").and_then(|cpus| UsableCpus::read(&host.proc, &cpus, None));
        Self {
            name: printable(name.split('.').next().unwrap_or(&name)),
            load: load.and_then(|text| text.split_whitespace().next().map(str::to_owned)),
            memory_used: memory.zip(of("MemAvailable")).map(|(all, free)| all.saturating_sub(free)),
            memory,
            cpus: cpus.ok().map(|cpus| cpus.count()),
        }
    }
}
