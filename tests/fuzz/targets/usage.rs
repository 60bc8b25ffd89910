// SPDX-License-Identifier: GPL-2.0-or-later
//! The kernel's counters: an input is put into each of the files that are read, at the step and at a task below it.

use jobfence::cgroup::layout::{Hierarchy, Version};
use jobfence::cgroup::usage::Depth;
use jobfence::figures::Usage;
use jobfence::sys::dir::Dir;

use super::files;

pub const WORDS: &[&str] = &[
    "usage_usec 5\n",
    "throttled_usec ",
    "throttled_time 7\n",
    "oom_kill 18446744073709551615\n",
    "max 3\n",
    "8:0 rbytes=1 wbytes=2\n",
    "8:0 Read 4096\n",
    "8:0 Write 1\n",
    "18446744073709551615",
    "nr_periods 4\n",
    "anon 4096\n",
    "file 1\nshmem 2\n",
    "some avg10=0.00 total=12\n",
    "7:0 ",
];

const FILES: &[&str] = &[
    "cpu.stat",
    "memory.peak",
    "memory.events",
    "pids.events",
    "io.stat",
    "cpuacct.usage",
    "memory.max_usage_in_bytes",
    "memory.oom_control",
    "blkio.throttle.io_service_bytes_recursive",
    "blkio.throttle.io_serviced_recursive",
    "memory.stat",
    "memory.swap.peak",
    "memory.swap.current",
    "memory.failcnt",
    "memory.kmem.usage_in_bytes",
    "pids.peak",
    "cpu.pressure",
    "cpuacct.usage_user",
];

pub fn run(data: &[u8]) {
    for file in FILES {
        files::put(&format!("usage/{file}"), data);
    }
    files::put("usage/task_0/memory.oom_control", data);
    files::put("usage/task_0/pids.events", data);
    let dir = Dir::open(files::directory().join("usage")).expect("it was made");
    for version in [Version::V1, Version::V2] {
        let hierarchy = Hierarchy {
            version,
            mount: "/sys/fs/cgroup".into(),
            root: "/".to_owned(),
            controllers: ["cpu", "cpuacct", "memory", "pids", "io"].map(str::to_owned).into(),
            name: None,
        };
        let mut usage = Usage::default();
        usage.add(&hierarchy, &dir, Depth::All);
        // What has been read once is not counted again.
        let first = usage.clone();
        usage.add(&hierarchy, &dir, Depth::All);
        usage.or(&first);
        assert_eq!(usage, first);
    }
}
