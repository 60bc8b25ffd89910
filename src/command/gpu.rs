// SPDX-License-Identifier: GPL-2.0-or-later
//! What jobs use of GPUs.
//!
//! A call into a GPU's driver may never return: a GPU may have fallen off the bus. So `jobfence hold` makes none. A child of it does, the
//! probe (`probe`), and `prober` is hold's side of that. `sampler` knows which GPUs are which job's, `figures` adds up what is a job's,
//! `table` has each figure once, and `files` keeps them. Nothing here is in the shared object, or runs in a scheduler's daemon.

mod answer;
mod dmem;
mod drm;
mod figures;
mod files;
mod nvml;
pub mod probe;
mod prober;
mod sampler;
mod table;
mod words;

pub use figures::{GpuUse, JobGpus};
pub use files::{SCHEMA, ended};
pub use sampler::GpuSampler;
pub use table::GPU_FIGURES;
pub use words::{in_words, of_all};

/// NVIDIA's GPU with this device, by its number.
fn nvidias(device: &str) -> Option<u32> {
    number_behind(device, "nvidia")
}

/// The name below /sys/class/drm of a GPU with this device.
fn drm_name(device: &str) -> Option<&str> {
    let (directory, name) = device.rsplit_once('/')?;
    let is_drm = directory.ends_with("/dri") && ["renderD", "card"].iter().any(|kind| number(name, kind).is_some());
    is_drm.then_some(name)
}

/// The number in a device's name, by which a GPU is called.
fn number_of(device: &str) -> Option<u32> {
    ["nvidia", "renderD", "card"].iter().find_map(|kind| number_behind(device, kind))
}

fn number_behind(device: &str, kind: &str) -> Option<u32> {
    number(device.rsplit_once('/')?.1, kind)
}

fn number(name: &str, kind: &str) -> Option<u32> {
    let digits = name.strip_prefix(kind)?;
    digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))
}
