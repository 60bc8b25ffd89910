// SPDX-License-Identifier: GPL-2.0-or-later
//! /sys/devices/system: lines `PATH CONTENT`, of files below it. Every CPU is in one core, or nothing is mapped.

use std::fs;

use jobfence::cpu_list::CpuList;
use jobfence::policy::CoreMap;
use jobfence::schedulers::slurm::cores::Topology;
use jobfence::sys::dir::Dir;

use super::{files, is_readable, text};

pub const WORDS: &[&str] = &[
    "cpu/online 0-3\n",
    "cpu/present 0-3\n",
    "cpu/cpu0/topology/core_cpus_list 0-1\n",
    "cpu/cpu1/topology/package_cpus_list ",
    "cpu/cpu0/topology/core_id 0\n",
    "cpu/cpu0/cache/index0/level 3\n",
    "cpu/cpu0/cache/index0/shared_cpu_list 0-3\n",
    "node/node0/cpulist 0-3\n",
    "node/node0/distance 10 20\n",
    "0,2",
];

/// So many files are made of one input: making them takes longer than reading them.
const MOST: usize = 64;

pub fn run(data: &[u8]) {
    let _ = fs::remove_dir_all(files::directory().join("devices"));
    files::put("devices/system/cpu/x", b"");
    let mut online = None;
    for line in text(data).lines().take(MOST) {
        let (path, content) = line.split_once(' ').unwrap_or((line, ""));
        let plain =
            |name: &str| (1..64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let names: Vec<&str> = path.split('/').collect();
        // As deep as they are, so that no file is in the way of a directory.
        let depth = match names[..] {
            ["cpu", _] => 2,
            ["cpu", _, "topology", _] => 4,
            ["cpu", _, "cache", _, _] => 5,
            ["node", _, _] => 3,
            _ => continue,
        };
        let is_directory = |name: &str| name.starts_with("cpu") || name.starts_with("node");
        if !names.iter().all(|name| plain(name))
            || depth == 2 && is_directory(names[1])
            || depth > 2 && !is_directory(names[1])
        {
            continue;
        }
        if path == "cpu/online" {
            online = CpuList::parse(content);
        }
        files::put(&format!("devices/system/{path}"), content.as_bytes());
    }
    let devices = Dir::open(files::directory().join("devices")).expect("it was made");
    match Topology::read(&devices) {
        Ok(topology) => {
            let cores: CpuList = (0..topology.cores() as u32).collect();
            assert_eq!(topology.cpus_of(&cores).as_ref().ok(), online.as_ref());
            let mut seen = CpuList::default();
            for core in cores.iter() {
                let cpus = topology.cpus_of(&[core].into_iter().collect()).expect("a core");
                assert!(cpus.in_both(&seen).is_empty() && cpus.len() == topology.threads_per_core());
                seen = seen.and(&cpus);
            }
            assert!(topology.cpus_of(&[topology.cores() as u32].into_iter().collect()).is_err());
        }
        Err(error) => {
            is_readable(&error.to_string().chars().take(4000).collect::<String>().replace(char::is_control, "?"))
        }
    }
}
