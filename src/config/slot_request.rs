// SPDX-License-Identifier: GPL-2.0-or-later
//! Which requests of a job are its memory or its GPUs, if a scheduler grants slots: the value of `SlotMemory` and `SlotGPUs`.

use super::units::{NONE, Wrong};

/// A request that counts as memory or as GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotRequest {
    /// As the scheduler calls it.
    pub name: String,
    /// What its amount is for.
    pub per: PerSlot,
}

impl SlotRequest {
    /// The request of this name.
    pub fn of(name: &str, per: PerSlot) -> Self {
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
    /// All slots of the job on the node.
    Job,
}

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
            Some((name, per)) if per.eq_ignore_ascii_case("slot") => (name, PerSlot::Slot),
            Some((name, per)) if per.eq_ignore_ascii_case("job") => (name, PerSlot::Job),
            Some(_) => return Err(Wrong::Form),
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
    let one = |request: &SlotRequest| match request.per {
        PerSlot::AsCounted => request.name.clone(),
        PerSlot::Slot => format!("{}:slot", request.name),
        PerSlot::Job => format!("{}:job", request.name),
    };
    let texts: Vec<String> = all.iter().map(one).collect();
    if texts.is_empty() { NONE.to_owned() } else { texts.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_names() {
        for text in ["h_vmem", "a:slot,b:job,c", "none"] {
            assert_eq!(read(text).map(|all| super::text(&all)), Ok(text.to_owned()));
        }
        for wrong in ["", ",", "a,", "a,a", "a:x", "a b", "a=1", ":job"] {
            assert_eq!(read(wrong), Err(Wrong::Form), "{wrong:?}");
        }
    }
}
