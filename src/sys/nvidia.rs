// SPDX-License-Identifier: GPL-2.0-or-later
//! What NVIDIA's driver says of its GPUs in `/proc/driver/nvidia`.

use std::num::ParseIntError;

use crate::error::Result;
use crate::sorted;
use crate::sys::dir::Dir;

/// No node has more GPUs; more count as not understood.
const MOST: usize = 1024;

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gpu {
    /// Its PCI address: domain, bus, device and function, compared in this order.
    pub address: [u32; 4],
    /// The X of its `/dev/nvidiaX`.
    pub minor: u32,
    /// `GPU-` and its unique number; `None` if the driver has not read it yet.
    pub uuid: Option<String>,
}

impl Gpu {
    /// The path of its device: the driver never changes this name.
    pub fn device(&self) -> String {
        format!("/dev/nvidia{}", self.minor)
    }
}

/// All GPUs of this node, in the order of their PCI addresses; none where the driver is not loaded.
///
/// `None`: there are some that are not understood.
pub fn gpus(proc: &Dir) -> Option<Vec<Gpu>> {
    let Ok(dir) = proc.child("driver/nvidia/gpus") else { return Some(Vec::new()) };
    let names = dir.list(true).ok()?;
    if names.len() > MOST {
        return None;
    }
    let mut gpus = Vec::new();
    for name in names {
        let address = address(&name)?;
        let (minor, uuid) = information(&dir.read(&format!("{name}/information")).ok()?)?;
        gpus.push(Gpu { address, minor, uuid });
    }
    sorted::sort(&mut gpus);
    let mut minors: Vec<u32> = gpus.iter().map(|gpu| gpu.minor).collect();
    sorted::sort(&mut minors);
    minors.dedup();
    (minors.len() == gpus.len()).then_some(gpus)
}

/// Whether a GPU of this node is divided into instances (MIG). Slurm may count each instance as a GPU.
pub fn has_instances(proc: &Dir) -> Result<bool> {
    let Ok(dir) = proc.child("driver/nvidia/capabilities") else { return Ok(false) };
    for gpu in dir.list(true)?.iter().filter(|name| name.starts_with("gpu")) {
        let Ok(mig) = dir.child(&format!("{gpu}/mig")) else { continue };
        if mig.list(true)?.iter().any(|name| name.starts_with("gi")) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads `0000:3b:00.0`.
fn address(name: &str) -> Option<[u32; 4]> {
    let (device, function) = name.rsplit_once('.')?;
    let mut parts = device.split(':').chain([function]);
    let mut next = || parts.next().map(|digits| u32::from_str_radix(digits, 16)).and_then(std::result::Result::ok);
    let address = [next()?, next()?, next()?, next()?];
    parts.next().is_none().then_some(address)
}

/// The minor number and the UUID in the text of `information`.
fn information(text: &str) -> Option<(u32, Option<String>)> {
    let value = |key: &str| {
        let of_line = |line: &str| {
            line.split_once(':').filter(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned())
        };
        text.lines().find_map(of_line)
    };
    let minor: std::result::Result<u32, ParseIntError> = value("Device Minor")?.parse();
    let sound =
        |uuid: &String| uuid.starts_with("GPU-") && uuid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    Some((minor.ok()?, value("GPU UUID").filter(sound)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const INFORMATION: &str = "Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 138\nGPU UUID: \t GPU-@\nVideo BIOS: \t 92.00\n\
                               Bus Type: \t PCIe\nDMA Size: \t 47 bits\nBus Location: \t 0000:3b:00.0\nDevice Minor: \t #\nGPU Excluded:\t No\n";

    fn put(proc: &Path, address: &str, minor: u32, uuid: &str) {
        let dir = proc.join("driver/nvidia/gpus").join(address);
        fs::create_dir_all(&dir).unwrap();
        let text = INFORMATION.replace('#', &minor.to_string()).replace('@', uuid);
        fs::write(dir.join("information"), text).unwrap();
    }

    #[test]
    fn gpus_are_in_the_order_of_their_addresses() {
        let temp = tempfile::tempdir().unwrap();
        let proc = Dir::open(temp.path()).unwrap();
        assert_eq!(gpus(&proc), Some(vec![]));
        for (address, minor, uuid) in [
            ("0000:b1:00.0", 0, "11-2a"),
            ("0000:0a:00.0", 2, "??"),
            ("0001:02:00.0", 1, "c"),
            ("0000:b1:00.1", 3, "d"),
        ] {
            put(temp.path(), address, minor, uuid);
        }
        let found = gpus(&proc).unwrap();
        assert_eq!(
            found.iter().map(Gpu::device).collect::<Vec<_>>(),
            ["2", "0", "3", "1"].map(|n| format!("/dev/nvidia{n}"))
        );
        let uuids: Vec<_> = found.iter().map(|gpu| gpu.uuid.as_deref()).collect();
        assert_eq!(uuids, [None, Some("GPU-11-2a"), Some("GPU-d"), Some("GPU-c")]);
        // A GPU that is not understood makes all of them unknown.
        put(temp.path(), "0000:c1:00.0", 3, "again");
        assert_eq!(gpus(&proc), None);
        fs::remove_dir_all(temp.path().join("driver/nvidia/gpus/0000:c1:00.0")).unwrap();
        fs::write(temp.path().join("driver/nvidia/gpus/0000:b1:00.0/information"), "Model: x\n").unwrap();
        assert_eq!(gpus(&proc), None);
    }

    #[test]
    fn instances_are_seen() {
        let temp = tempfile::tempdir().unwrap();
        let proc = Dir::open(temp.path()).unwrap();
        assert!(!has_instances(&proc).unwrap());
        let mig = temp.path().join("driver/nvidia/capabilities/gpu1/mig");
        fs::create_dir_all(&mig).unwrap();
        fs::create_dir_all(temp.path().join("driver/nvidia/capabilities/mig")).unwrap();
        fs::write(mig.join("access"), "").unwrap();
        assert!(!has_instances(&proc).unwrap());
        fs::create_dir(mig.join("gi3")).unwrap();
        assert!(has_instances(&proc).unwrap());
    }

    #[test]
    fn addresses() {
        assert_eq!(address("0000:3b:00.1"), Some([0, 0x3b, 0, 1]));
        for bad in ["", "3b:00.0", "0000:3b:00", "0000:3b:00.0.0", "0000:3b:0:0.0", "x:3b:00.0", "0000:3b:00.g"] {
            assert_eq!(address(bad), None, "{bad}");
        }
    }
}
