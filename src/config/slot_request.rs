// SPDX-License-Identifier: GPL-2.0-or-later
//! Which requests of a job are its CPUs, its memory or its GPUs, where a scheduler grants slots: the value of `SlotCPUs`, `SlotMemory` and
//! `SlotGPUs`.

#[cfg(test)]
use proptest::prelude::*;

use super::units::{NONE, Wrong};

/// A request that counts as CPUs, memory or GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotRequest {
    /// As the scheduler calls it.
    pub name: String,
    /// What its amount is for.
    pub per: PerSlot,
}

impl SlotRequest {
    /// The request of this name.
    pub fn new(name: &str, per: PerSlot) -> Self {
        Self { name: name.to_owned(), per }
    }
}

/// What the amount of a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PerSlot {
    /// What the scheduler counts it for, if it says so; otherwise each slot.
    AsCounted,
    /// Each slot.
    Slot,
    /// The amount is for all slots of the job on each node.
    Host,
    /// The amount is for the whole job, on the node of its script alone.
    Job,
}

/// What stands behind a name that is not as the scheduler counts it.
const SUFFIXES: [(&str, PerSlot); 3] = [("slot", PerSlot::Slot), ("host", PerSlot::Host), ("job", PerSlot::Job)];

/// Reads requests, with commas between them.
pub(super) fn read(text: &str) -> Result<Vec<SlotRequest>, Wrong> {
    if text.eq_ignore_ascii_case(NONE) {
        return Ok(Vec::new());
    }
    let is_name = |name: &str| {
        !name.is_empty() && name.len() <= 64 && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
    };
    let mut all: Vec<SlotRequest> = Vec::new();
    for one in text.split(',') {
        let (name, per) = match one.split_once(':') {
            None => (one, PerSlot::AsCounted),
            Some((name, suffix)) => {
                let known = SUFFIXES.iter().find(|(known, _)| suffix.eq_ignore_ascii_case(known));
                (name, known.ok_or(Wrong::Form)?.1)
            }
        };
        if !is_name(name) || all.iter().any(|before| before.name == name) {
            return Err(Wrong::Form);
        }
        all.push(SlotRequest { name: name.to_owned(), per });
    }
    Ok(all)
}

/// The requests as [`read`] reads them.
pub(super) fn text(all: &[SlotRequest]) -> String {
    let one = |request: &SlotRequest| match SUFFIXES.iter().find(|(_, per)| *per == request.per) {
        None => request.name.clone(),
        Some((suffix, _)) => format!("{}:{suffix}", request.name),
    };
    let texts: Vec<String> = all.iter().map(one).collect();
    if texts.is_empty() { NONE.to_owned() } else { texts.join(",") }
}

/// All that can be requested.
#[cfg(test)]
pub(super) fn any() -> BoxedStrategy<Vec<SlotRequest>> {
    let per = prop::sample::select(vec![PerSlot::AsCounted, PerSlot::Slot, PerSlot::Host, PerSlot::Job]);
    let all = prop::collection::btree_map("[a-z][A-Za-z0-9_.-]{0,9}", per, 0..4);
    let text = |name: &String| !name.eq_ignore_ascii_case(NONE);
    all.prop_map(move |all| {
        all.into_iter().filter(|(name, _)| text(name)).map(|(name, per)| SlotRequest { name, per }).collect()
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_names() {
        for text in ["h_vmem", "a:slot,b:job,c,d:host", "none"] {
            assert_eq!(read(text).map(|all| super::text(&all)), Ok(text.to_owned()));
        }
        for wrong in ["", ",", "a,", "a,a", "a:x", "a b", "a=1", ":job"] {
            assert_eq!(read(wrong), Err(Wrong::Form), "{wrong:?}");
        }
    }
}
