// SPDX-License-Identifier: GPL-2.0-or-later
//! jobfence.conf: what is understood can be written and read again, and what is not is said in a few lines.

use jobfence::config::{Config, KEYS, parse};

use super::is_readable;

pub const WORDS: &[&str] = &[
    "Mode=",
    "observe",
    "OnError=",
    "fail,swap:warn",
    "CgroupMountpoint=",
    "CgroupBase=",
    "RunDir=\"/a b\"",
    "ConstrainCPUQuota=",
    "CPUQuotaPercent=98.5%",
    "CPUQuotaPeriod=1500us",
    "CPUBurst=",
    "CPUPolicy=both",
    "MaxCPUsPerTask=granted",
    "HeadroomCPUs=0.125",
    "MinRAMSpace=1025K",
    "ZeroCPUs=0.2",
    "DefaultRAMSpace=256M",
    "MaxRAMPerUser=unlimited",
    "MemoryHighPercent=",
    "MaxProcesses=",
    "IOMax=/scratch rbps=200M wiops=1000",
    "IOMaxPerUser=\"/a wbps=1K; /b riops=5\"",
    "IOWeight=",
    "MaxHugePages=2M:4G,1G:0",
    "DeviceAllow=\"/dev/fuse rw,char-pts rw\"",
    "GPUDevice=/dev/nvidia%d",
    "[Partition=gpu]",
    "[User=\"a b\"]",
    "\\#",
    "\"",
    " = ",
    "\r\n",
];

pub fn run(data: &[u8]) {
    match parse("fuzz", data) {
        Ok(config) => {
            let written = config.to_string();
            assert_eq!(parse("again", written.as_bytes()).as_ref(), Ok(&config), "{written}");
            for key in KEYS {
                let mut again = Config::default();
                let Some(value) = key.get(&config) else { continue };
                assert_eq!(key.set(&mut again, &value), Ok(()), "{}={value}", key.name);
                assert_eq!(key.get(&again), Some(value), "{}", key.name);
            }
        }
        Err(errors) => {
            assert!((1..=20).contains(&errors.len()), "{} errors", errors.len());
            errors.iter().for_each(|error| is_readable(&error.to_string()));
        }
    }
}
