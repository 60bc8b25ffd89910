// SPDX-License-Identifier: GPL-2.0-or-later
//! How much memory may be in huge pages of each size: the hugetlb controller (hugetlbpage.rst, cgroup-v1/hugetlb.rst).
//!
//! The kernel counts twice. `max` counts pages when they are touched: a process that exceeds it is killed by SIGBUS. `rsvd.max` (Linux
//! 5.7) counts them when mmap(2) reserves them: a process that exceeds it gets ENOMEM, which it can handle. Both get the same number:
//! `rsvd.max` alone would let pages through that were mapped with MAP_NORESERVE, and `max` alone would kill processes that can handle
//! an error.

use std::fmt;

use nix::errno::Errno;

use super::layout::Version;
use crate::bytes;
use crate::error::{Error, Result};
use crate::job::HugePage;
use crate::sorted;
use crate::sys::dir::Dir;

/// Limits, size by size: `2M:4G,1G:0`, or `2M:4G,*:0`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HugePages {
    sizes: Vec<HugePage>,
    /// Whether there is to be no page of another size.
    is_closed: bool,
}

/// Stands for all sizes that are not named.
const REST: &str = "*:0";
/// A directory for each size that this host has.
const SIZES: &str = "/sys/kernel/mm/hugepages";

/// More sizes than any architecture has.
const MOST_SIZES: usize = 16;

impl HugePages {
    /// Reads limits as `2M:4G,1G:0`: sizes of pages with a unit, each at most once; limits in MiB, or with a unit, which are rounded
    /// down to whole pages as the kernel would. At the end `*:0` can stand. `None`: it is something else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut sizes: Vec<HugePage> = Vec::new();
        if text == REST {
            return Some(Self::default().closed());
        }
        let named = text.strip_suffix(REST).and_then(|text| text.strip_suffix(','));
        for item in named.unwrap_or(text).split(',') {
            let (page, limit) = item.split_once(':')?;
            let page = bytes::parse(page, None)
                .ok()
                .filter(|page| page.is_power_of_two() && *page >= 1 << 10 && *page <= 1 << 40)?;
            if sizes.len() >= MOST_SIZES || sizes.iter().any(|size| size.page == page) {
                return None;
            }
            sizes.push(HugePage { page, limit: bytes::parse(limit, Some(1 << 20)).ok()? / page * page });
        }
        Some(Self { sizes, is_closed: named.is_some() })
    }

    /// These sizes.
    pub fn from_sizes(sizes: Vec<HugePage>) -> Self {
        Self { sizes, is_closed: false }
    }

    /// The sizes that are named.
    pub fn into_sizes(self) -> Vec<HugePage> {
        self.sizes
    }

    /// These, and no page of another size.
    #[must_use]
    pub fn closed(self) -> Self {
        Self { is_closed: true, ..self }
    }

    /// The lower limit of each size that either of the two limits.
    #[must_use]
    pub fn at_most(&self, other: &Self) -> Self {
        let mut sizes = self.within(other).sizes;
        let is_new = |size: &&HugePage| !self.sizes.iter().any(|ours| ours.page == size.page);
        sizes.extend(other.within(self).sizes.iter().filter(is_new));
        Self { sizes, is_closed: self.is_closed || other.is_closed }
    }

    /// These sizes, with no limit above the other's.
    #[must_use]
    pub fn within(&self, other: &Self) -> Self {
        let lower =
            |size: &HugePage| HugePage { limit: other.limit(size.page).unwrap_or(u64::MAX).min(size.limit), ..*size };
        Self { sizes: self.sizes.iter().map(lower).collect(), ..*self }
    }

    fn limit(&self, page: u64) -> Option<u64> {
        let named = self.sizes.iter().find(|size| size.page == page);
        named.map(|size| size.limit).or(self.is_closed.then_some(0))
    }

    /// Whether no size is limited.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty() && !self.is_closed
    }

    /// The same with each size of this host by its name. What cannot be looked at stays.
    #[must_use]
    pub fn spelled_out(&self, sizes: &[u64]) -> Self {
        let rest = sizes.iter().filter(|page| self.is_closed && !self.sizes.iter().any(|size| size.page == **page));
        let rest = rest.map(|page| HugePage { page: *page, limit: 0 });
        Self { sizes: self.sizes.iter().copied().chain(rest).collect(), is_closed: false }
    }

    /// The same, and the sizes are those of this host.
    pub fn spelled_out_here(&self) -> Result<Self> {
        Ok(if self.is_closed { self.spelled_out(&known_sizes(&Dir::open(SIZES)?)?) } else { self.clone() })
    }

    /// The files of a directory and what is to be in each, in their order, of the sizes that are named; those of reservations, which older kernels do not
    /// have, are marked.
    pub fn writes(&self, version: Version) -> Vec<HugePageWrite> {
        let (limit, reserved) = limit_files(version);
        let files = |size: &HugePage| {
            let name = kernel_name(size.page);
            [(limit, false), (reserved, true)].map(|(file, is_optional)| HugePageWrite {
                file: format!("hugetlb.{name}.{file}"),
                bytes: size.limit,
                is_optional,
            })
        };
        self.sizes.iter().flat_map(files).collect()
    }

    /// Refuses a size if this host has no pages of it. `sizes` is `/sys/kernel/mm/hugepages`.
    pub fn check(&self, sizes: &Dir) -> Result<()> {
        let known = known_sizes(sizes)?;
        match self.sizes.iter().find(|size| !known.contains(&size.page)) {
            None => Ok(()),
            Some(size) => {
                let known: Vec<String> = known.into_iter().map(bytes::text).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(" and ") };
                Err(Error::new("this host has no huge pages of the size").value(bytes::text(size.page)).hint(format!(
                    "it has {known}; the processor and the kernel's command line (hugepagesz=) decide that"
                )))
            }
        }
    }
}

impl fmt::Display for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = self.sizes.iter().map(|size| format!("{}:{}", bytes::text(size.page), bytes::text(size.limit)));
        let all: Vec<String> = sizes.chain(self.is_closed.then(|| REST.to_owned())).collect();
        f.write_str(&all.join(","))
    }
}

/// One file's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HugePageWrite {
    /// The file's name.
    pub file: String,
    /// In bytes.
    pub bytes: u64,
    /// Whether the kernel may lack the file.
    pub is_optional: bool,
}

/// Sets a directory's limits, and reads them back.
pub fn set(dir: &Dir, version: Version, want: &HugePages) -> Result<()> {
    // Most sites limit none: then the host's page sizes do not matter.
    if want.is_empty() {
        return Ok(());
    }
    want.check(&Dir::open(SIZES).map_err(|error| {
        error.hint("this kernel has no huge pages (CONFIG_HUGETLBFS): leave the limit out of jobfence.conf")
    })?)?;
    for write in want.spelled_out_here()?.writes(version) {
        let found = match dir.write_and_read(&write.file, &write.bytes.to_string()) {
            Err(error) if error.kernel_errno() == Some(Errno::ENOENT) && write.is_optional => continue,
            Err(error) if error.kernel_errno() == Some(Errno::ENOENT) => {
                return Err(error.hint("the hugetlb controller is not available here: see 'jobfence check'"));
            }
            other => other?,
        };
        if found.trim().parse() != Ok(write.bytes) {
            return Err(Error::new("the limit was written, but the kernel shows another:")
                .at(dir.path().join(&write.file))
                .value(format!("wanted {}, found {}", write.bytes, found.trim())));
        }
    }
    Ok(())
}

/// A directory's limits of these sizes, without those that cannot be read or are not limited.
pub fn limits(dir: &Dir, version: Version, sizes: &HugePages) -> HugePages {
    let limit = |size: &HugePage| {
        let file = format!("hugetlb.{}.{}", kernel_name(size.page), limit_files(version).0);
        let limit = dir.read_value(&file).ok()?.trim().parse().ok()?;
        // v1's "unlimited" is a number, too.
        (limit < 1 << 62).then_some(HugePage { limit, ..*size })
    };
    let sizes = sizes.spelled_out_here().unwrap_or_default();
    HugePages { sizes: sizes.sizes.iter().filter_map(limit).collect(), is_closed: false }
}

/// The ends of a size's file names: for touched pages, and for reserved ones.
fn limit_files(version: Version) -> (&'static str, &'static str) {
    match version {
        Version::V2 => ("max", "rsvd.max"),
        Version::V1 => ("limit_in_bytes", "rsvd.limit_in_bytes"),
    }
}

/// The host's page sizes in bytes, smallest first: each has a directory such as `hugepages-2048kB` (hugetlbpage.rst).
fn known_sizes(sizes: &Dir) -> Result<Vec<u64>> {
    let size = |name: &String| {
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        kib.checked_mul(1 << 10)
    };
    let mut known: Vec<u64> = sizes.list(true)?.iter().filter_map(size).collect();
    sorted::sort(&mut known);
    Ok(known)
}

/// The name of a size in the names of files: `2MB`, `1GB`, `64KB` (`mem_fmt`, mm/hugetlb_cgroup.c).
fn kernel_name(page: u64) -> String {
    match page {
        1_073_741_824.. => format!("{}GB", page >> 30),
        1_048_576.. => format!("{}MB", page >> 20),
        _ => format!("{}KB", page >> 10),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn pages(text: &str) -> HugePages {
        HugePages::parse(text).unwrap()
    }

    #[test]
    fn limits_are_read_size_by_size() {
        for (text, written) in [
            ("2M:4G,1G:0", "2M:4G,1G:0"),
            ("2048k:4096", "2M:4G"),
            ("64KiB:100K", "64K:64K"),
            ("2MB:5M", "2M:4M"),
            ("1g:1536M", "1G:1G"),
            ("16G:1T", "16G:1T"),
            ("1T:1024G", "1T:1T"),
            ("2M:1", "2M:0"),
            ("*:0", "*:0"),
            ("2m:4g,*:0", "2M:4G,*:0"),
        ] {
            assert_eq!(pages(text).to_string(), written, "{text}");
            assert_eq!(pages(written), pages(text), "{text}");
        }
    }

    #[test]
    fn the_lower_limit_of_each_size() {
        let (a, b) = (pages("2M:4G,1G:1G"), pages("64K:1M,1G:2G,2M:2G"));
        assert_eq!(a.at_most(&b).to_string(), "2M:2G,1G:1G,64K:1M");
        assert_eq!(a.within(&b).to_string(), "2M:2G,1G:1G");
        assert_eq!(HugePages::default().at_most(&b), b);
        assert!(HugePages::default().within(&b).is_empty());
        let closed = pages("2M:3G,*:0");
        assert_eq!(a.at_most(&closed).to_string(), "2M:3G,1G:0,*:0");
        assert_eq!(closed.at_most(&a).to_string(), "2M:3G,1G:0,*:0");
        assert_eq!(
            (a.within(&closed).to_string(), closed.within(&a).to_string()),
            ("2M:3G,1G:0".into(), "2M:3G,*:0".into())
        );
        assert_eq!(pages("*:0").at_most(&pages("*:0")), pages("*:0"));
        assert!(!pages("*:0").is_empty());
    }

    #[test]
    fn what_is_no_limit_of_pages_is_refused() {
        for text in [
            "",
            "2M",
            "2M:",
            ":4G",
            "2:4G",
            "0M:4G",
            "3M:4G",
            "2M:4G,",
            "2M:4G,2048K:1G",
            "2M:-1",
            "2M:4G:1",
            "2M:1.5G",
            "512:1G",
            "2M:18446744073709551616",
            "2M:99999999999T",
            "2T:2T",
            "2 M:4G",
            "2M: 4G",
            "unlimited",
            "*",
            "*:1",
            "*:0,2M:4G",
            "2M:4G,*:0,*:0",
            ",*:0",
            "2M:4G*:0",
        ] {
            assert_eq!(HugePages::parse(text), None, "{text:?}");
        }
        let many: Vec<String> = (0..17).map(|power| format!("{}K:0", 1u64 << power)).collect();
        assert_eq!(HugePages::parse(&many.join(",")), None);
        assert!(HugePages::parse(&many[..16].join(",")).is_some());
    }

    #[test]
    fn files_have_the_kernels_names() {
        let files = |version| {
            let writes = pages("64K:1M,2M:4G,16G:0").writes(version);
            writes.into_iter().map(|write| format!("{}={}", write.file, write.bytes)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            files(Version::V2),
            "hugetlb.64KB.max=1048576 hugetlb.64KB.rsvd.max=1048576 hugetlb.2MB.max=4294967296 \
             hugetlb.2MB.rsvd.max=4294967296 hugetlb.16GB.max=0 hugetlb.16GB.rsvd.max=0"
        );
        assert!(
            files(Version::V1).starts_with("hugetlb.64KB.limit_in_bytes=1048576 hugetlb.64KB.rsvd.limit_in_bytes=")
        );
    }

    #[test]
    fn the_rest_is_each_other_size_of_the_host() {
        let here = [1 << 30, 2 << 20];
        assert_eq!(pages("2M:4G,*:0").spelled_out(&here).to_string(), "2M:4G,1G:0");
        assert_eq!(pages("*:0").spelled_out(&here).to_string(), "1G:0,2M:0");
        assert_eq!(pages("2M:4G").spelled_out(&here).to_string(), "2M:4G");
    }

    #[test]
    fn a_size_that_the_host_does_not_have_is_an_error_with_those_that_it_has() {
        let temp = tempfile::tempdir().unwrap();
        for name in ["hugepages-1048576kB", "hugepages-2048kB", "other"] {
            fs::create_dir(temp.path().join(name)).unwrap();
        }
        let sizes = Dir::open(temp.path()).unwrap();
        pages("1G:0,2M:4G").check(&sizes).unwrap();
        let error = pages("2M:0,64K:0").check(&sizes).unwrap_err().to_string();
        assert!(error.contains("64K") && error.contains("it has 2M and 1G"), "{error}");
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[0-9KMGTkb:,*]*|\\PC*") {
            if let Some(pages) = HugePages::parse(&text) {
                prop_assert_eq!(HugePages::parse(&pages.to_string()), Some(pages));
            }
        }
    }
}
