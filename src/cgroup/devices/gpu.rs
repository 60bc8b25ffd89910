// SPDX-License-Identifier: GPL-2.0-or-later
//! `GPUDevice`: which device is which of Slurm's GPUs, and which GPUs can be chosen. No I/O.

use std::fmt;
use std::path::PathBuf;

use super::rules;
use crate::facts::Gpus;
use crate::sorted;

/// No node has more GPUs.
const MOST_GPUS: usize = 1024;

/// The pattern of GPUs' device paths, with a GPU's number in the last component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuDevice {
    directory: String,
    before: String,
    after: String,
    /// The numbers of the GPUs that Slurm has, in Slurm's order, if the site names them.
    order: Option<Vec<u32>>,
}

impl GpuDevice {
    /// Reads `/dev/nvidia%d`, or `/dev/nvidia[2,0-1]`, which has the numbers, too. `None`: it is no absolute path with exactly one of
    /// these, in its last component.
    pub fn parse(text: &str) -> Option<Self> {
        let (directory, name) = text.rsplit_once('/')?;
        let (before, after, order) = match name.split_once('[') {
            None => name.split_once("%d").map(|(before, after)| (before, after, None))?,
            Some((before, rest)) => {
                let (list, after) = rest.split_once(']')?;
                (before, after, Some(numbers(list)?))
            }
        };
        let is_sound = rules::path(&format!("{directory}/{before}{after}")).is_ok();
        // No digit may stand next to the number: it would be taken for a part of it.
        let ends = before.ends_with(|c: char| c.is_ascii_digit()) || after.starts_with(|c: char| c.is_ascii_digit());
        if !is_sound || ends || [directory, before, after].iter().any(|part| part.contains([' ', ',', '%', ']'])) {
            return None;
        }
        let [directory, before, after] = [directory, before, after].map(str::to_owned);
        Some(Self { directory, before, after, order })
    }

    /// The devices in the scheduler's order, if the site names it.
    pub fn in_order(&self) -> Option<Vec<PathBuf>> {
        Some(self.order.as_ref()?.iter().map(|number| self.path(*number)).collect())
    }

    /// The device of one GPU.
    pub fn path(&self, number: u32) -> PathBuf {
        PathBuf::from(format!("{}/{}{number}{}", self.directory, self.before, self.after))
    }

    /// The directory of the devices.
    pub fn directory(&self) -> &str {
        if self.directory.is_empty() { "/" } else { &self.directory }
    }

    /// The number in a file's name, if that is a GPU's.
    pub fn number(&self, name: &str) -> Option<u32> {
        let digits = name.strip_prefix(self.before.as_str())?.strip_suffix(self.after.as_str())?;
        let is_plain = digits == "0" || !digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit());
        digits.parse().ok().filter(|_| is_plain)
    }

    /// The numbers of a job's GPUs, or why they are not certain.
    pub fn numbers_of(&self, gpus: &Gpus) -> Result<Vec<u32>, String> {
        match (gpus, &self.order) {
            (Gpus::None, _) => Ok(Vec::new()),
            (Gpus::Unknown(why), _) | (Gpus::Positions(_, why), None) => Err(why.clone()),
            (Gpus::Positions(positions, _), Some(order)) => positions.iter().map(|at| Self::at(order, *at)).collect(),
            (Gpus::Devices(devices), Some(order)) => devices.iter().map(|(at, _)| Self::at(order, *at)).collect(),
            (Gpus::Devices(devices), None) => devices.iter().map(|(_, path)| self.number_of(path)).collect(),
            (Gpus::Chosen(paths), _) => paths.iter().map(|path| self.number_of(path)).collect(),
        }
    }

    /// The numbers of the GPUs among these files of its directory, in the order in which jobs are to have them: the site's or, without
    /// one, by number.
    pub fn numbers_among(&self, names: &[String]) -> Vec<u32> {
        let mut found: Vec<u32> = names.iter().filter_map(|name| self.number(name)).collect();
        sorted::sort(&mut found);
        match &self.order {
            Some(order) => order.iter().copied().filter(|number| found.binary_search(number).is_ok()).collect(),
            None => found,
        }
    }

    /// Whether the devices have the names that NVIDIA's driver gives.
    pub fn is_nvidias(&self) -> bool {
        self.before == "nvidia" && self.after.is_empty()
    }

    fn at(order: &[u32], position: u32) -> Result<u32, String> {
        let number = usize::try_from(position).ok().and_then(|position| order.get(position));
        number.copied().ok_or_else(|| {
            format!(
                "Slurm has given the job the GPU {position} of this node, and GPUDevice names {} of them",
                order.len()
            )
        })
    }

    /// The number in a GPU's device path.
    pub fn number_of(&self, path: &str) -> Result<u32, String> {
        let number = path.rsplit_once('/').and_then(
            |(directory, name)| {
                if directory == self.directory { self.number(name) } else { None }
            },
        );
        number.ok_or_else(|| format!("{path} is a GPU of the job, and is not called as GPUDevice={self}"))
    }
}

/// Reads `2,0-1`, with no number twice.
fn numbers(list: &str) -> Option<Vec<u32>> {
    let number = |text: &str| {
        let is_plain = text == "0" || !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u32>().ok().filter(|_| is_plain)
    };
    let mut all = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number(first)?, number(last)?);
        let count = usize::try_from(last.checked_sub(first)?).ok()?.checked_add(1)?;
        if all.len() + count > MOST_GPUS {
            return None;
        }
        all.extend(first..=last);
    }
    let mut once = all.clone();
    sorted::sort(&mut once);
    once.dedup();
    (once.len() == all.len()).then_some(all)
}

/// As [`GpuDevice::parse`] reads it.
impl fmt::Display for GpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.directory, self.before)?;
        match &self.order {
            None => f.write_str("%d")?,
            Some(order) => {
                let runs = order.chunk_by(|one, next| one.checked_add(1) == Some(*next));
                let runs: Vec<String> = runs
                    .filter_map(|run| match run {
                        [] => None,
                        [one] => Some(one.to_string()),
                        [first, .., last] => Some(format!("{first}-{last}")),
                    })
                    .collect();
                write!(f, "[{}]", runs.join(","))?;
            }
        }
        f.write_str(&self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_has_its_number_in_its_name() {
        let gpus = GpuDevice::parse("/dev/nvidia%d").unwrap();
        assert_eq!((gpus.path(7).to_str(), gpus.directory()), (Some("/dev/nvidia7"), "/dev"));
        for (name, number) in [
            ("nvidia0", Some(0)),
            ("nvidia12", Some(12)),
            ("nvidia", None),
            ("nvidia01", None),
            ("nvidia+1", None),
            ("nvidiactl", None),
            ("nvidia-uvm", None),
            ("nvidia99999999999", None),
        ] {
            assert_eq!(gpus.number(name), number, "{name}");
        }
        let render = GpuDevice::parse("/dev/dri/renderD%dx").unwrap();
        assert_eq!((render.number("renderD128x"), render.to_string()), (Some(128), "/dev/dri/renderD%dx".into()));
        for text in
            ["", "/dev/nvidia", "dev/nvidia%d", "/dev/%d/%d", "/dev/%d/x", "/dev/a%d%d", "/dev/a1%d", "/dev/a%d2"]
        {
            assert_eq!(GpuDevice::parse(text), None, "{text}");
        }
        for text in ["/dev/../a%d", "/dev/a%d,b", "/dev/a%d rw", "/dev/*%d", "%d", "/%s%d"] {
            assert_eq!(GpuDevice::parse(text), None, "{text}");
        }
        assert_eq!(GpuDevice::parse("/g%d").unwrap().path(3).to_str(), Some("/g3"));
    }

    #[test]
    fn a_site_can_name_the_order() {
        for text in ["/dev/nvidia[2-3]", "/dev/nvidia[0]", "/dev/dri/renderD[129,128,130-131]x", "/g[1,0]"] {
            assert_eq!(GpuDevice::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(GpuDevice::parse("/dev/a[0,1,2]").unwrap().to_string(), "/dev/a[0-2]");
        for text in [
            "/dev/a[]",
            "/dev/a[1",
            "/dev/a1]",
            "/dev/a[1]]",
            "/dev/a[1][2]",
            "/dev/a[1]%d",
            "/dev/a%d[1]",
            "/dev/a[1-]",
            "/dev/a[2-1]",
            "/dev/a[1,1]",
            "/dev/a[0-2,1]",
            "/dev/a[01]",
            "/dev/a[x]",
            "/dev/a[0-1024]",
            "/dev/a[0-4294967295]",
            "/dev/a0[1]",
            "/dev/a[1]0",
            "/dev[1]/a",
            "/dev/a[1] rw",
        ] {
            assert_eq!(GpuDevice::parse(text), None, "{text}");
        }
    }

    #[test]
    fn gpus_are_by_the_sites_order_or_by_their_devices_and_by_nothing_else() {
        let (pattern, order) =
            (GpuDevice::parse("/dev/nvidia%d").unwrap(), GpuDevice::parse("/dev/nvidia[2,0]").unwrap());
        let devices = Gpus::Devices(vec![(0, "/dev/nvidia3".into()), (1, "/dev/nvidia2".into())]);
        assert_eq!(pattern.numbers_of(&devices), Ok(vec![3, 2]));
        assert_eq!(order.numbers_of(&devices), Ok(vec![2, 0]));
        let positions = Gpus::Positions(vec![1], "why".into());
        assert_eq!(pattern.numbers_of(&positions), Err("why".into()));
        assert_eq!(order.numbers_of(&positions), Ok(vec![0]));
        for gpus in [&pattern, &order] {
            assert_eq!(gpus.numbers_of(&Gpus::None), Ok(vec![]));
            assert_eq!(gpus.numbers_of(&Gpus::Unknown("why".into())), Err("why".into()));
        }
        for gpus in [&pattern, &order] {
            // jobfence has chosen this GPU by its path, so only the path counts.
            assert_eq!(gpus.numbers_of(&Gpus::Chosen(vec!["/dev/nvidia3".into()])), Ok(vec![3]));
            assert!(gpus.numbers_of(&Gpus::Chosen(vec!["/dev/dri/card0".into()])).is_err());
        }
        let more = order.numbers_of(&Gpus::Positions(vec![0, 2], String::new())).unwrap_err();
        assert!(more.contains("the GPU 2 of this node, and GPUDevice names 2"), "{more}");
        for path in ["/dev/dri/card0", "/dev/x/nvidia0", "/dev/nvidiactl", "nvidia0"] {
            let error = pattern.numbers_of(&Gpus::Devices(vec![(0, path.into())])).unwrap_err();
            assert!(error.contains(path) && error.contains("GPUDevice=/dev/nvidia%d"), "{error}");
        }
    }

    #[test]
    fn gpus_are_chosen_by_their_numbers_or_in_the_sites_order() {
        let names = ["nvidia10", "nvidiactl", "nvidia2", "nvidia0", "null"].map(str::to_owned);
        let among = |text: &str| GpuDevice::parse(text).unwrap().numbers_among(&names);
        assert_eq!(among("/dev/nvidia%d"), [0, 2, 10]);
        assert_eq!(among("/dev/nvidia[10,1,0]"), [10, 0]);
        assert_eq!(among("/dev/dri/card%d"), [0_u32; 0]);
        for (text, is_nvidias) in
            [("/dev/nvidia%d", true), ("/dev/nvidia[1]", true), ("/dev/nvidia%dx", false), ("/dev/card%d", false)]
        {
            assert_eq!(GpuDevice::parse(text).unwrap().is_nvidias(), is_nvidias, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_read_is_written_the_same(text in "/(d/)?[a-z]{0,2}(%d|\\[[0-9,-]{0,9}\\])[a-z]{0,2}") {
            if let Some(gpus) = GpuDevice::parse(&text) {
                proptest::prop_assert_eq!(GpuDevice::parse(&gpus.to_string()), Some(gpus));
            }
        }
    }
}
