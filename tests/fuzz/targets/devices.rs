// SPDX-License-Identifier: GPL-2.0-or-later
//! `DeviceAllow` and `GPUDevice`: each line is one or the other.

use jobfence::cgroup::devices::{self, GpuDevice, Target};
use jobfence::facts::Gpus;

use super::{is_readable, text};

pub const WORDS: &[&str] = &[
    "/dev/fuse rw",
    "char-pts",
    "block-loop r",
    "char-4095",
    "rwm",
    ",",
    "/dev/nvidia%d",
    "%d",
    "/dev/a[2,0-1]",
    "[",
    "]",
    "/..",
    "*",
];

pub fn run(data: &[u8]) {
    for line in text(data).split('\n').take(64) {
        match devices::parse(line) {
            Ok(rules) => {
                assert!((1..=128).contains(&rules.len()));
                let written = devices::text(&rules);
                assert_eq!(devices::parse(&written).as_ref(), Ok(&rules), "{written:?}");
                for rule in &rules {
                    assert!((1..=7).contains(&rule.access.bits()));
                    let Target::Path(path) = &rule.target else { continue };
                    assert!(path.is_absolute() && !path.components().any(|part| part.as_os_str() == ".."));
                }
            }
            Err(why) => is_readable(why),
        }
        let Some(gpus) = GpuDevice::parse(line) else { continue };
        assert_eq!(GpuDevice::parse(&gpus.to_string()).as_ref(), Some(&gpus), "{line:?}");
        for number in [0, 9, 10, u32::MAX] {
            let path = gpus.path(number);
            // The GPU of a device, and no other.
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            assert_eq!(gpus.number(name), Some(number), "{line:?}");
            assert_eq!(path.parent().expect("above"), std::path::Path::new(gpus.directory()), "{line:?}");
        }
        order_or_device(&gpus);
    }
}

/// With an order by that alone, and without one by the device alone; never one GPU for two.
fn order_or_device(gpus: &GpuDevice) {
    let device = gpus.path(7).to_str().expect("text").to_owned();
    let known = gpus.numbers_of(&Gpus::Devices(vec![(0, device)])).expect("the first");
    match gpus.numbers_of(&Gpus::Positions((0..8).collect(), "why".to_owned())) {
        Err(why) if why == "why" => assert_eq!(known, [7]),
        Err(why) => assert!(why.contains("GPUDevice names"), "{why}"),
        Ok(all) => {
            assert_eq!(known, all[..1]);
            assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 8);
        }
    }
}
