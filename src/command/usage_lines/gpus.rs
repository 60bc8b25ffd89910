// SPDX-License-Identifier: GPL-2.0-or-later
//! A line of the log of GPUs for a summary: what a job did with the GPUs of a node. Nothing is allocated but for a text with an escape in it.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::moment::seconds_of;
use crate::values::{amount, each_item, each_member, text_of};

/// The name of the format.
const SCHEMA: &str = "jobfence-gpus-1";

/// What the format's name begins with in every release.
const ANY_SCHEMA: &str = "jobfence-gpus-";

/// What a summary needs of a line. Times are in microseconds.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct GpuLine<'a> {
    /// The job's id.
    pub job: Cow<'a, str>,
    /// The job's user.
    pub uid: Option<u64>,
    /// When the job began, since 1970.
    pub started: u64,
    /// When its GPUs were last looked at, since 1970.
    pub looked: u64,
    /// How many GPUs of the node the job was granted, if that is known.
    pub granted: Option<u64>,
    /// How many GPUs the line has.
    pub count: u64,
    /// How long the use of its GPUs is known, summed over the GPUs.
    pub observed: u64,
    /// How much of that time the GPUs were busy, summed over the GPUs.
    pub busy: u64,
    /// A hash of the node's name, if the line has one, and of the GPUs. The order of the GPUs does not matter.
    pub which: u64,
}

/// What a line is that names this format.
pub(crate) enum ReadGpus<'a> {
    Line(GpuLine<'a>),
    /// A line whose last look is before the time of interest.
    Earlier,
    /// A line in the format of another release.
    Newer,
}

/// Reads a line about GPUs. `None`: it is another line. `since`: the earliest time of interest, as the log writes it; empty: all.
pub(crate) fn read<'a>(line: &'a [u8], since: &str) -> Option<ReadGpus<'a>> {
    // The name of the format is searched for in the whole line, since jobfence writes the members in alphabetical order.
    memchr::memmem::find(line, ANY_SCHEMA.as_bytes())?;
    let (mut schema, mut job, mut looked, mut started, mut gpus) = (None, None, None, None, None);
    let (mut read, mut node) = (GpuLine::default(), None);
    each_member(line, &mut |name, value| match name {
        b"schema" => schema = text_of(value),
        b"job" => job = text_of(value),
        b"node" => node = text_of(value),
        b"uid" => read.uid = amount(value, 0).filter(|uid| *uid <= u64::from(u32::MAX)),
        b"looked" => looked = text_of(value),
        b"started" => started = text_of(value),
        b"granted" => read.granted = amount(value, 0),
        b"gpus" => gpus = Some(value),
        _ => {}
    })?;
    let schema = schema.filter(|schema| schema.starts_with(ANY_SCHEMA))?;
    if schema != SCHEMA {
        return Some(ReadGpus::Newer);
    }
    let (looked, started, gpus) = (looked?, started?, gpus?);
    let micros = |moment: &str| seconds_of(moment).map(|seconds| seconds.saturating_mul(1_000_000));
    (read.job, read.looked, read.started) = (job?, micros(&looked)?, micros(&started)?);
    if &*looked < since {
        return Some(ReadGpus::Earlier);
    }
    let mut of_node = DefaultHasher::new();
    node.hash(&mut of_node);
    each_item(gpus, &mut |gpu| read.add(gpu, &of_node))?;
    Some(ReadGpus::Line(read))
}

impl GpuLine<'_> {
    fn add(&mut self, gpu: &[u8], of_node: &DefaultHasher) {
        let (mut observed, mut busy) = (0, 0);
        let mut hasher = of_node.clone();
        // A value of a GPU that cannot be read is unknown. The rest of the line still counts.
        let _ = each_member(gpu, &mut |name, value| match name {
            b"device" | b"uuid" => (name, value).hash(&mut hasher),
            b"observed_seconds" => observed = amount(value, 6).unwrap_or(0),
            b"busy_seconds" => busy = amount(value, 6).unwrap_or(0),
            _ => {}
        });
        self.count += 1;
        self.observed = self.observed.saturating_add(observed);
        self.busy = self.busy.saturating_add(busy.min(observed));
        self.which = self.which.wrapping_add(hasher.finish());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::{self, Read};

    const LINE: &str = r#"{"energy_joules":1.5,"granted":2,"gpus":[{"busy_seconds":1.5,"device":"/dev/nvidia0","observed_seconds":50.25},{"device":"/dev/nvidia1","observed_seconds":3,"busy_seconds":4,"slowed_by":["]}"]}],"job":"7","looked":"1970-01-01T00:01:00Z","node":null,"schema":"jobfence-gpus-1","started":"1970-01-01T00:00:02Z","uid":5}"#;

    fn of(text: &str) -> GpuLine<'_> {
        let Read::Gpus(line) = line::read(text.as_bytes(), "") else { panic!("{text}") };
        line
    }

    #[test]
    fn a_line_about_gpus_is_read_in_one_pass() {
        let line = of(LINE);
        assert_eq!((&*line.job, line.uid, line.started, line.looked), ("7", Some(5), 2_000_000, 60_000_000));
        // No GPU is busy for longer than it was looked at.
        assert_eq!((line.granted, line.count, line.observed, line.busy), (Some(2), 2, 53_250_000, 4_500_000));
        // The order of the GPUs does not matter. Other GPUs, and those of another node, give another hash.
        let turned = LINE.replace("nvidia0", "nvidiaX").replace("nvidia1", "nvidia0").replace("nvidiaX", "nvidia1");
        assert_eq!(of(&turned).which, line.which);
        assert_ne!(of(&LINE.replace("nvidia0", "nvidia2")).which, line.which);
        assert_ne!(of(&LINE.replace("\"node\":null", "\"node\":\"n1\"")).which, line.which);
        assert_eq!(of(&LINE.replace("[{", "[ {").replace("}]", "} ]")), line);
        // The line is before the time of interest, or in it.
        assert_eq!(line::read(LINE.as_bytes(), "1970-01-01T00:01:01Z"), Read::Earlier);
        assert!(matches!(line::read(LINE.as_bytes(), "1970-01-01T00:01:00Z"), Read::Gpus(_)));
    }

    #[test]
    fn what_is_no_whole_line_about_gpus_is_none() {
        for length in 0..LINE.len() {
            assert_eq!(line::read(&LINE.as_bytes()[..length], ""), Read::Foreign, "{length}");
        }
        assert_eq!(line::read(LINE.replace("gpus-1", "gpus-2").as_bytes(), ""), Read::Newer);
        let foreign = [
            ("\"schema\"", "\"scheme\""),
            ("\"job\"", "\"jab\""),
            ("\"gpus\"", "\"gpu\""),
            ("1970", "19x0"),
            ("[{", "["),
        ];
        for (old, new) in foreign {
            assert_eq!(line::read(LINE.replace(old, new).as_bytes(), ""), Read::Foreign, "{new}");
        }
        // Only the member `schema` names the format.
        assert_eq!(line::read(br#"{"schema":"other","job":"jobfence-gpus-1"}"#, ""), Read::Foreign);
        assert_eq!(of(&LINE.replace("\"observed_seconds\":50.25", "\"observed_seconds\":null")).observed, 3_000_000);
    }
}
