// SPDX-License-Identifier: GPL-2.0-or-later
//! Which GPUs of this host a slot has.
//!
//! condor_gpu_discovery names an NVIDIA GPU by its UUID, or by the first eight digits of the UUID (`gpuIDFromUUID`, in 23.9 and 25.14).
//! With `-by-index` it names the GPU by its place in CUDA's order, from which the device does not follow. MIG instances of a GPU share one
//! device.

use crate::facts::Gpus;
use crate::printable::is_printable;
use crate::sys::nvidia::Gpu;

/// The beginning of each UUID.
const PREFIX: &str = "GPU-";
/// The length of a short name: the prefix and eight digits.
const SHORT: usize = PREFIX.len() + 8;

/// What the startd says of a slot's GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotGpus {
    /// `AssignedGPUs`: their names, with commas between them. `None`: the startd names none.
    pub names: Option<String>,
    /// `GPUs`: their number. The startd can count GPUs that have no name.
    pub count: u64,
}

impl SlotGpus {
    /// The devices of these GPUs. `driver` returns the GPUs of NVIDIA's driver here. `None`: its files are not understood.
    pub fn on_host(&self, driver: impl FnOnce() -> Option<Vec<Gpu>>) -> Gpus {
        let names = self.names.as_deref().unwrap_or_default();
        let names: Vec<&str> = names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        match (names.is_empty(), self.count) {
            // A static slot keeps the names of GPUs that are offline, so the count decides (`RefreshDevIds`).
            (_, 0) => return Gpus::None,
            (true, _) => return Gpus::Unknown("HTCondor only counts the slot's GPUs, and names none".to_owned()),
            _ => {}
        }
        let Some(driver) = driver() else {
            return Gpus::Unknown("what is in /proc/driver/nvidia is not understood".to_owned());
        };
        let mut devices: Vec<String> = Vec::new();
        for name in names {
            let mut found = driver.iter().filter(|gpu| gpu.uuid.as_deref().is_some_and(|uuid| is_named(uuid, name)));
            match (found.next(), found.next()) {
                // Two of the slot's GPUs can be parts of one (`-divide`).
                (Some(gpu), None) if !devices.contains(&gpu.device()) => devices.push(gpu.device()),
                (Some(_), None) => {}
                _ => return Gpus::Unknown(why_unknown(name, &driver)),
            }
        }
        Gpus::Chosen(devices)
    }
}

fn is_named(uuid: &str, name: &str) -> bool {
    let begins = |length| uuid.get(..length).is_some_and(|begin| begin.eq_ignore_ascii_case(name));
    name.starts_with(PREFIX) && (begins(uuid.len()) || name.len() == SHORT && begins(SHORT))
}

fn why_unknown(name: &str, driver: &[Gpu]) -> String {
    let name: String = name.chars().filter(|c| is_printable(*c)).take(60).collect();
    let known = driver.iter().filter(|gpu| gpu.uuid.is_some()).count();
    format!(
        "HTCondor calls a GPU of the slot {name}, and of the {known} that NVIDIA's driver has by UUID no single one is that"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver() -> Option<Vec<Gpu>> {
        let gpu = |minor: u32, uuid: &str| Gpu { address: [0, minor, 0, 0], minor, uuid: Some(uuid.to_owned()) };
        let mut all = vec![
            gpu(3, "GPU-c4a646d7-aa14-1dd1-f1b0-57288cda864d"),
            gpu(1, "GPU-6a96bd13-70bc-6494-6d62-1b77a9a7f29f"),
            gpu(2, "GPU-99999999-0000-0000-0000-000000000001"),
            gpu(4, "GPU-99999999-0000-0000-0000-000000000002"),
        ];
        all.push(Gpu { address: [0, 9, 0, 0], minor: 9, uuid: None });
        Some(all)
    }

    fn of(names: &str) -> Gpus {
        SlotGpus { names: Some(names.to_owned()), count: 1 }.on_host(driver)
    }

    #[test]
    fn a_uuid_names_a_device() {
        let chosen = |numbers: &[u32]| Gpus::Chosen(numbers.iter().map(|n| format!("/dev/nvidia{n}")).collect());
        assert_eq!(of("GPU-c4a646d7"), chosen(&[3]));
        assert_eq!(of("GPU-6a96bd13-70bc-6494-6d62-1b77a9a7f29f, GPU-C4A646D7"), chosen(&[1, 3]));
        assert_eq!(of("GPU-c4a646d7,GPU-c4a646d7"), chosen(&[3]), "a GPU in parts");
        assert_eq!(of("GPU-99999999-0000-0000-0000-000000000002"), chosen(&[4]));
    }

    #[test]
    fn what_is_not_certain_is_no_device() {
        for name in
            ["CUDA0", "GPU-c4a646d", "GPU-99999999", "GPU-12345678", "MIG-c4a646d7", "GPU-MIG-c4a6", "GPU-", "nvidia3"]
        {
            for names in [name.to_owned(), format!("GPU-c4a646d7,{name}")] {
                let Gpus::Unknown(why) = of(&names) else { panic!("{names}") };
                assert!(why.contains(&format!("calls a GPU of the slot {name},")), "{why}");
            }
        }
        let some = SlotGpus { names: Some("GPU-c4a646d7".to_owned()), count: 1 };
        assert!(matches!(some.on_host(|| None), Gpus::Unknown(_)));
        assert!(matches!(SlotGpus { names: None, count: 2 }.on_host(driver), Gpus::Unknown(_)));
    }

    #[test]
    fn a_slot_without_gpus_asks_no_driver() {
        assert_eq!(SlotGpus::default().on_host(|| panic!("it is asked")), Gpus::None);
        for names in [" ", "GPU-c4a646d7"] {
            let slot = SlotGpus { names: Some(names.to_owned()), count: 0 };
            assert_eq!(slot.on_host(|| panic!("it is asked")), Gpus::None);
        }
    }
}
