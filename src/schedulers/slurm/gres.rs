// SPDX-License-Identifier: GPL-2.0-or-later
//! The order in which Slurm counts a node's GPUs: gres.conf(5) and slurm.conf(5), read as slurmd reads them.
//!
//! `gres_g_node_config_load` (src/interfaces/gres.c; src/common/gres.c in 22.05), read in every tag from 22.05.0 to 26.05.3 and in master,
//! does the same in all of them:
//! - Lines of gres.conf that begin with `Name=` come first, then this node's lines that begin with `NodeName=`.
//! - The node's `Gres=` in slurm.conf takes lines from these, for each of its types in turn, and no more GPUs than it names.
//! - The files of the taken lines are counted from 0, in the order of their lists (`gres_node_config_load`).
//! - `AutoDetect` sorts: by the files' names, and then by the place that NVML gave the GPU, which is the order of PCI addresses
//!   (`_merge_system_gres_conf`, src/plugins/gres/gpu/gres_gpu.c). `gpu/nvidia` gives no place, so its order is that of the names.
//!
//! Anything uncertain is an error with its reason: a wrong guess would grant another job's GPU.

use crate::hostlist::HostList;
use crate::printable::printable;
use crate::schedulers::slurm::conf::{Lines, SlurmAssignment, value};
use crate::sorted;
use crate::sys::nvidia::Gpu;

/// Slurm's name for GPUs.
const GPU: &str = "gpu";
/// No node has more.
const MOST: usize = 1024;

/// What gres.conf says of a node's GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GresConf {
    detect: Detect,
    lines: Vec<GresLine>,
}

/// What finds GPUs that gres.conf does not name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Detect {
    Nobody,
    /// NVML, NVIDIA's library.
    Nvml,
    /// `/proc/driver/nvidia`.
    Nvidia,
    /// One of these two, or another.
    Full,
    Other(String),
}

/// The GPUs of one line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GresLine {
    kind: Option<String>,
    /// Empty: AutoDetect finds them.
    files: Vec<String>,
}

impl GresConf {
    /// Reads the lines for this node.
    pub fn from_lines(lines: &Lines, node: &str) -> Result<Self, String> {
        let (mut global, mut local) = (None, None);
        let (mut everybodys, mut ours) = (Vec::new(), Vec::new());
        for line in lines.by_line() {
            // Slurm lets the first key decide what kind of a line it is.
            let (first, rest) = match line {
                [auto, rest @ ..] if auto.is("AutoDetect") => {
                    global = Some(auto.value.clone());
                    (rest.first(), rest)
                }
                _ => (line.first(), line),
            };
            let Some(first) = first else { continue };
            let detect = value(rest, "AutoDetect");
            let name = value(rest, "Name");
            let is_gpu = name.is_some_and(|name| name.eq_ignore_ascii_case(GPU));
            if !is_gpu && detect.is_none() {
                continue;
            }
            if first.is("NodeName") {
                match HostList::parse(&first.value) {
                    Some(nodes) if !nodes.contains(node) => continue,
                    Some(_) => {}
                    None => return Err(format!("{} has a NodeName that is not understood", place(first))),
                }
                local = detect.map(str::to_owned).or(local);
                if is_gpu {
                    ours.push(GresLine::read(first, rest)?);
                }
            } else if first.is("Name") && value(rest, "NodeName").is_none() {
                // AutoDetect has no effect on such a line.
                if is_gpu {
                    everybodys.push(GresLine::read(first, rest)?);
                }
            } else {
                return Err(format!("{} begins neither with Name nor with NodeName", place(first)));
            }
        }
        everybodys.append(&mut ours);
        if everybodys.len() > MOST {
            return Err(format!("gres.conf has more than {MOST} lines of GPUs for this node"));
        }
        Ok(Self { detect: Detect::read(local.or(global).as_deref()), lines: everybodys })
    }

    /// The device of each GPU that Slurm counts on this node. `gres` is the node's `Gres=` in slurm.conf, if a line is about the node;
    /// `driver` is what NVIDIA's driver reports, in the order of PCI addresses.
    pub fn devices(&self, gres: Option<&str>, driver: &[Gpu]) -> Result<Vec<String>, String> {
        let gres = gres.map(types_of).transpose()?;
        let named = self.named(gres.as_deref())?;
        let by_address: Vec<String> = driver.iter().map(Gpu::device).collect();
        let mut by_name = driver.to_vec();
        sorted::sort_by_key(&mut by_name, |gpu| gpu.minor);
        let by_name: Vec<String> = by_name.iter().map(Gpu::device).collect();
        let ambiguous = || {
            let detect = self.detect.in_words();
            Err(format!(
                "with {detect} and what else is in gres.conf and slurm.conf the order of the GPUs is not certain"
            ))
        };
        let count = gres.as_ref().map(|types| types.iter().fold(0u64, |all, (_, count)| all.saturating_add(*count)));
        match &self.detect {
            Detect::Nobody if named.is_empty() => {
                Err("gres.conf and slurm.conf name no device of this node's GPUs, and have no AutoDetect".to_owned())
            }
            Detect::Nobody => Ok(named),
            Detect::Other(_) => ambiguous(),
            _ if !named.is_empty() => {
                // AutoDetect finds more GPUs than the lines name; and a GPU whose type does not match comes behind those that NVML gave a
                // place.
                let has_types = gres.iter().flatten().any(|(kind, _)| kind.is_some());
                if count != Some(named.len() as u64) || has_types && named.len() > 1 && self.detect != Detect::Nvidia {
                    return ambiguous();
                }
                // Without NVML they are in the order of the lines, or of their names.
                let theirs: Vec<String> = by_address.into_iter().filter(|device| named.contains(device)).collect();
                let is_same = self.detect == Detect::Nvidia || theirs.is_empty() || theirs == named;
                if is_same && in_order_of_names(&named) { Ok(named) } else { ambiguous() }
            }
            _ if count != Some(driver.len() as u64) => Err(match count {
                Some(count) => format!(
                    "slurm.conf has {count} GPUs for this node and NVIDIA's driver has {}, so it is not certain which AutoDetect takes",
                    driver.len()
                ),
                None => "no line of slurm.conf is this node's, and says how many GPUs AutoDetect takes".to_owned(),
            }),
            Detect::Nvml => Ok(by_address),
            Detect::Nvidia => Ok(by_name),
            Detect::Full if by_address == by_name => Ok(by_name),
            Detect::Full => ambiguous(),
        }
    }

    /// Whether the instances of a divided GPU may be counted as GPUs.
    pub fn can_count_instances(&self) -> bool {
        self.detect != Detect::Nobody
    }

    /// The files that the lines name, as far as slurm.conf takes them.
    fn named(&self, gres: Option<&[(Option<String>, u64)]>) -> Result<Vec<String>, String> {
        let Some(types) = gres else {
            let mut kinds = self.lines.iter().map(|line| line.kind.as_ref().map(|kind| kind.to_ascii_lowercase()));
            let first = kinds.next();
            if kinds.any(|kind| Some(kind) != first) {
                return Err(
                    "no line of slurm.conf is this node's, and says in which order the types of gres.conf come"
                        .to_owned(),
                );
            }
            return Ok(self.lines.iter().flat_map(|line| line.files.clone()).collect());
        };
        let mut left: Vec<&GresLine> = self.lines.iter().collect();
        let mut named: Vec<String> = Vec::new();
        for (kind, count) in types {
            let mut count = usize::try_from(*count).unwrap_or(usize::MAX);
            let is_one = |line: &&GresLine| match (kind, &line.kind) {
                (None, _) => true,
                (Some(kind), Some(theirs)) => kind.eq_ignore_ascii_case(theirs),
                (Some(_), None) => false,
            };
            while count > 0
                && let Some(at) = left.iter().position(is_one)
            {
                let line = left.remove(at);
                let taken = line.files.len().min(count);
                named.extend(line.files.iter().take(taken).cloned());
                count -= taken;
            }
        }
        Ok(named)
    }
}

impl Detect {
    /// As `_handle_autodetect_flags`, which searches for words within the text.
    fn read(text: Option<&str>) -> Self {
        let Some(text) = text else { return Self::Nobody };
        let lower = text.to_ascii_lowercase();
        match &lower {
            _ if lower == "off" => Self::Nobody,
            _ if lower.contains("full") => Self::Full,
            _ if lower.contains("nvml") => Self::Nvml,
            _ if ["rsmi", "oneapi", "nrt"].iter().any(|word| lower.contains(word)) => Self::Other(text.to_owned()),
            _ if lower.contains("nvidia") => Self::Nvidia,
            _ => Self::Other(text.to_owned()),
        }
    }

    fn in_words(&self) -> String {
        match self {
            Self::Nobody => "no AutoDetect".to_owned(),
            Self::Nvml => "AutoDetect=nvml".to_owned(),
            Self::Nvidia => "AutoDetect=nvidia".to_owned(),
            Self::Full => "AutoDetect=full".to_owned(),
            Self::Other(text) => format!("AutoDetect={}", short(text)),
        }
    }
}

impl GresLine {
    fn read(first: &SlurmAssignment, rest: &[SlurmAssignment]) -> Result<Self, String> {
        let is_exact = value(rest, "Name") == Some(GPU);
        if !is_exact || value(rest, "MultipleFiles").is_some() {
            let why = if is_exact {
                "gives a GPU several devices (MultipleFiles)"
            } else {
                "spells the name of gpu otherwise"
            };
            return Err(format!("{} {why}", place(first)));
        }
        let files = match value(rest, "File").or_else(|| value(rest, "Files")) {
            Some(text) => expand(text).ok_or_else(|| format!("{} has a File that is not understood", place(first)))?,
            None => Vec::new(),
        };
        let count = value(rest, "Count");
        if !files.is_empty() && count.is_some_and(|count| count.parse() != Ok(files.len())) {
            return Err(format!("{} has a Count that is not that of its files", place(first)));
        }
        Ok(Self { kind: value(rest, "Type").map(str::to_owned), files })
    }
}

/// A value, shortened for a message.
fn short(text: &str) -> String {
    printable(text, ' ').chars().take(100).collect()
}

fn place(line: &SlurmAssignment) -> String {
    format!("{}:{}", line.file.display(), line.line)
}

/// Expands `/dev/nvidia[0,2-3],/dev/nvidia7`, in this order. Slurm's own lists allow more, which no device name needs.
fn expand(text: &str) -> Option<Vec<String>> {
    let mut files = Vec::new();
    let mut rest = text;
    loop {
        let plain = |c: char| c.is_ascii_alphanumeric() || "/_.:-".contains(c);
        let behind = rest.trim_start_matches(plain);
        let name = rest.strip_suffix(behind)?;
        // Without brackets Slurm takes 0-3 at the end of a name for a range, too.
        let has_range = name.as_bytes().windows(2).any(|pair| matches!(pair, [digit, b'-'] if digit.is_ascii_digit()));
        if !name.starts_with('/') || has_range {
            return None;
        }
        rest = match behind.strip_prefix('[') {
            None => {
                files.push(name.to_owned());
                behind
            }
            Some(inside) => {
                let (list, behind) = inside.split_once(']')?;
                for range in list.split(',') {
                    let (first, last) = range.split_once('-').unwrap_or((range, range));
                    let width = first.len();
                    let number = |digits: &str| {
                        let sound = (1..=9).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
                        digits.parse::<u32>().ok().filter(|_| sound)
                    };
                    let (first, last) = (number(first)?, number(last)?);
                    if last.checked_sub(first)? as usize >= MOST {
                        return None;
                    }
                    files.extend((first..=last).map(|number| format!("{name}{number:0width$}")));
                    if files.len() > MOST {
                        return None;
                    }
                }
                behind
            }
        };
        if rest.is_empty() {
            let mut once = files.clone();
            sorted::sort(&mut once);
            once.dedup();
            return (once.len() == files.len() && files.len() <= MOST).then_some(files);
        }
        rest = rest.strip_prefix(',')?;
    }
}

/// Whether all are the same name with a number behind it, in ascending order.
fn in_order_of_names(files: &[String]) -> bool {
    let parts = |file: &String| {
        let name = file.trim_end_matches(|c: char| c.is_ascii_digit());
        let number: Option<u32> = file.strip_prefix(name).and_then(|digits| digits.parse().ok());
        number.map(|number| (name.to_owned(), number))
    };
    let parts: Vec<_> = files.iter().map(parts).collect();
    parts.iter().all(Option::is_some)
        && parts.windows(2).all(|pair| match pair {
            [Some((name, number)), Some((next, higher))] => name == next && number < higher,
            _ => false,
        })
}

/// The types and counts of GPUs in slurm.conf's `Gres=`, such as `gpu:a100:2,gpu:v100:1,shard:8`. Equal types are added up, as in Slurm.
fn types_of(gres: &str) -> Result<Vec<(Option<String>, u64)>, String> {
    let wrong = || format!("slurm.conf's Gres={} is not understood", short(gres));
    let mut types: Vec<(Option<String>, u64)> = Vec::new();
    for item in gres.split(',').map(str::trim) {
        let mut parts: Vec<&str> = item.split(':').collect();
        if !parts.first().is_some_and(|name| name.eq_ignore_ascii_case(GPU)) {
            continue;
        }
        parts.retain(|part| *part != "no_consume");
        let (kind, count) = match parts.as_slice() {
            [GPU] => (None, 1),
            [GPU, last] if last.starts_with(|c: char| c.is_ascii_digit()) => (None, last.parse().map_err(|_| wrong())?),
            [GPU, kind] => (Some((*kind).to_owned()), 1),
            [GPU, kind, count] => (Some((*kind).to_owned()), count.parse().map_err(|_| wrong())?),
            _ => return Err(wrong()),
        };
        let sound =
            |kind: &String| !kind.is_empty() && kind.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
        if !kind.as_ref().is_none_or(sound) {
            return Err(wrong());
        }
        match types.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, all)) => *all = all.saturating_add(count),
            None => types.push((kind, count)),
        }
    }
    let untyped = types.iter().filter(|(kind, _)| kind.is_none()).count();
    if untyped > 0 && types.len() > untyped { Err(wrong()) } else { Ok(types) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<GresConf, String> {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("gres.conf");
        std::fs::write(&file, text).unwrap();
        GresConf::from_lines(&Lines::read(&file), "n2")
    }

    fn driver(minors: &[u32]) -> Vec<Gpu> {
        let gpu = |(at, minor): (u32, &u32)| Gpu { address: [0, at, 0, 0], minor: *minor, uuid: None };
        (0..).zip(minors).map(gpu).collect()
    }

    /// Devices by the X of `/dev/nvidiaX`, or by their whole path.
    fn found(text: &str, gres: Option<&str>, minors: &[u32]) -> Result<Vec<String>, String> {
        let short = |device: String| device.strip_prefix("/dev/nvidia").map_or(device.clone(), str::to_owned);
        let devices = read(text)?.devices(gres, &driver(minors))?;
        Ok(devices.into_iter().map(short).collect())
    }

    #[test]
    fn files_are_counted_in_slurms_order() {
        for (text, gres, expected) in [
            ("Name=gpu File=/dev/nvidia[2-3]", "gpu:2", "2 3"),
            ("Name=gpu File=/dev/nvidia[3,0-1]", "gpu:3", "3 0 1"),
            ("name = gpu FILE=/dev/nvidia3\nName=gpu Files=\"/dev/nvidia1,/dev/nvidia[0,2]\"", "gpu:4", "3 1 0 2"),
            ("Name=gpu File=/dev/dri/renderD[128-129] # AMD", "gpu:2", "/dev/dri/renderD128 /dev/dri/renderD129"),
            ("Name=gpu File=/dev/gpu[08-11]", "gpu:4", "/dev/gpu08 /dev/gpu09 /dev/gpu10 /dev/gpu11"),
            ("Name=gpu \\\n File=/dev/nvidia1 Count=1", "gpu", "1"),
            // This node's own lines come behind those for all nodes, wherever they stand; lines for other nodes do not count.
            ("NodeName=n[1-2] Name=gpu File=/dev/nvidia0\nName=gpu File=/dev/nvidia5", "gpu:2", "5 0"),
            ("NodeName=n1 Name=gpu File=/dev/nvidia[0-1]\nNodeName=n2 Name=gpu File=/dev/nvidia[4-5]", "gpu:2", "4 5"),
            (
                "Name=gpu File=/dev/nvidia0\nName=mps Count=100 File=/dev/nvidia1\nName=shard Count=4",
                "gpu:1,shard:4",
                "0",
            ),
            // slurm.conf takes no more than it names, one type after the other.
            ("Name=gpu File=/dev/nvidia[0-3]", "craynetwork:4,gpu:2", "0 1"),
            (
                "Name=gpu Type=a File=/dev/nvidia[0-1]\nName=gpu Type=b File=/dev/nvidia[2-3]",
                "gpu:b:2,gpu:A:1",
                "2 3 0",
            ),
            ("Name=gpu Type=a File=/dev/nvidia0\nName=gpu Type=b File=/dev/nvidia1", "gpu:2", "0 1"),
            (
                "Name=gpu Type=a File=/dev/nvidia0\nName=gpu Type=b File=/dev/nvidia1\nName=gpu Type=a File=/dev/nvidia2",
                "gpu:a:1,gpu:b,gpu:a:1,gpu:b:0",
                "0 2 1",
            ),
            ("AutoDetect=nvml\nNodeName=n2 AutoDetect=off Name=gpu File=/dev/nvidia[1,0]", "gpu:2", "1 0"),
            ("NodeName=n1 AutoDetect=nvml\nName=gpu File=/dev/nvidia[1,0] AutoDetect=nvml", "gpu:2", "1 0"),
        ] {
            assert_eq!(
                found(text, Some(gres), &[0, 1]).map(|all| all.join(" ")),
                Ok(expected.to_owned()),
                "{text} {gres}"
            );
        }
        // A dynamic node, without a line in slurm.conf.
        assert_eq!(found("Name=gpu Type=x File=/dev/nvidia[7,6]", None, &[]), Ok(vec!["7".into(), "6".into()]));
    }

    #[test]
    fn what_is_detected_is_in_the_order_of_addresses_or_of_names() {
        // `minors` are in the order of the addresses.
        for (text, gres, minors, expected) in [
            ("AutoDetect=nvml", "gpu:4", &[2, 3, 0, 1][..], "2 3 0 1"),
            ("AutoDetect=NVML Name=gpu Type=a100 Count=2", "gpu:a100:2", &[1, 0], "1 0"),
            ("NodeName=n2 AutoDetect=nvml\nAutoDetect=off", "gpu:2", &[1, 0], "1 0"),
            ("AutoDetect=nvidia", "gpu:4", &[2, 3, 0, 1], "0 1 2 3"),
            ("AutoDetect=full", "gpu:2", &[0, 1], "0 1"),
            // Named and detected, in the same order.
            ("AutoDetect=nvml\nName=gpu File=/dev/nvidia[2-3]", "gpu:2", &[0, 2, 3], "2 3"),
            ("AutoDetect=nvml\nName=gpu Type=a File=/dev/nvidia0", "gpu:a:1", &[1, 0], "0"),
            ("AutoDetect=nvml\nName=gpu File=/dev/nvidia[0-1]", "gpu:2", &[], "0 1"),
            ("AutoDetect=nvidia\nName=gpu Type=a File=/dev/nvidia[0-1]", "gpu:a:2", &[1, 0], "0 1"),
        ] {
            assert_eq!(
                found(text, Some(gres), minors).map(|all| all.join(" ")),
                Ok(expected.to_owned()),
                "{text} {gres}"
            );
        }
    }

    #[test]
    fn what_is_not_certain_is_refused_with_its_reason() {
        let two = "Name=gpu Type=a File=/dev/nvidia0\nName=gpu Type=b File=/dev/nvidia1";
        for (text, gres, minors, reason) in [
            ("", Some("gpu:2"), &[0, 1][..], "name no device"),
            ("Name=gpu Count=2", Some("gpu:2"), &[0, 1], "name no device"),
            ("Name=gpu File=/dev/nvidia0", Some(""), &[0], "name no device"),
            ("Name=gpu File=/dev/nvidia0", Some("gpu:a100:1"), &[0], "name no device"),
            ("Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21", Some("gpu:1"), &[0], "MultipleFiles"),
            ("Name=GPU File=/dev/nvidia0", Some("gpu:1"), &[0], "spells"),
            ("Name=gpu File=/dev/nvidia[0-1] Count=3", Some("gpu:2"), &[0, 1], "Count"),
            ("Name=gpu File=/dev/nvidia0,/dev/nvidia0", Some("gpu:2"), &[0], "File that"),
            ("Name=gpu File=/dev/nvidia[0-1]x", Some("gpu:2"), &[0], "File that"),
            ("Name=gpu File=/dev/nvidia0-1", Some("gpu:2"), &[0], "File that"),
            ("Name=gpu File=nvidia0", Some("gpu:1"), &[0], "File that"),
            ("Name=gpu File=/dev/nvidia[0-9999]", Some("gpu:1"), &[0], "File that"),
            ("NodeName=n[1 Name=gpu File=/dev/nvidia0", Some("gpu:1"), &[0], "NodeName"),
            ("Name=gpu NodeName=n2 File=/dev/nvidia0", Some("gpu:1"), &[0], "begins"),
            ("File=/dev/nvidia0 Name=gpu", Some("gpu:1"), &[0], "begins"),
            (two, None, &[0, 1], "no line of slurm.conf"),
            (two, Some("gpu:a:1,gpu:1"), &[0, 1], "not understood"),
            (two, Some("gpu:a:1:x"), &[0, 1], "not understood"),
            (two, Some("gpu:2K"), &[0, 1], "not understood"),
            (two, Some("Gpu:2"), &[0, 1], "not understood"),
            // AutoDetect: not all GPUs, none that slurm.conf has, or one of several orders.
            ("AutoDetect=nvml", Some("gpu:1"), &[0, 1], "1 GPUs for this node and NVIDIA's driver has 2"),
            ("AutoDetect=nvml", Some("gpu:2"), &[], "driver has 0"),
            ("AutoDetect=nvml", None, &[0, 1], "no line of slurm.conf"),
            ("AutoDetect=full", Some("gpu:2"), &[1, 0], "AutoDetect=full"),
            ("AutoDetect=rsmi", Some("gpu:2"), &[0, 1], "AutoDetect=rsmi"),
            ("AutoDetect=rsmi\nName=gpu File=/dev/dri/card[0-1]", Some("gpu:2"), &[], "AutoDetect=rsmi"),
            ("AutoDetect=another", Some("gpu:2"), &[0, 1], "AutoDetect=another"),
            ("AutoDetect=nvml\nName=gpu File=/dev/nvidia[0-1]", Some("gpu:2"), &[1, 0], "AutoDetect=nvml"),
            ("AutoDetect=nvml\nName=gpu File=/dev/nvidia[1,0]", Some("gpu:2"), &[1, 0], "AutoDetect=nvml"),
            ("AutoDetect=nvml\nName=gpu File=/dev/nvidia1", Some("gpu:2"), &[0, 1], "AutoDetect=nvml"),
            ("AutoDetect=nvml\nName=gpu File=/dev/nvidia[1-2]", Some("gpu:2"), &[0, 1], "AutoDetect=nvml"),
            ("AutoDetect=nvml\nName=gpu Type=a File=/dev/nvidia[0-1]", Some("gpu:a:2"), &[0, 1], "AutoDetect=nvml"),
            ("AutoDetect=nvidia\nName=gpu File=/dev/nvidia[1,0]", Some("gpu:2"), &[0, 1], "AutoDetect=nvidia"),
            ("AutoDetect=full\nName=gpu File=/dev/nvidia[0-1]", None, &[0, 1], "AutoDetect=full"),
        ] {
            let error = found(text, gres, minors).unwrap_err();
            assert!(error.contains(reason), "{text} {gres:?}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "((AutoDetect|NodeName|Name|Type|File|Count)=?(gpu|nvml|n2|/dev/x|)[0-9,\\[\\]-]{0,5}[ \n]){0,9}", gres in "(gpu|[a-z0-9:,]){0,9}") {
            let _ = found(&text, Some(&gres), &[1, 0]);
        }
    }
}
