// SPDX-License-Identifier: GPL-2.0-or-later
//! The life cycle of every fence: open, limit, attach, settle, observe, close. Each phase has its own file.
//!
//! This module knows schedulers only by their directories and their words. Every operation may be repeated. The last step to end also
//! removes the job's and the user's directories. This needs no lock: making a directory starts again if a parent has vanished, and
//! removing one that is in use fails without harm.

mod amounts;
mod attach;
mod below;
pub mod branches;
mod close;
pub mod delegation;
pub mod explain;
mod fenced;
mod limit;
pub mod limiting;
pub mod living;
mod marks;
mod names;
mod observe;
pub mod open;
mod overlay;
pub mod own;
pub mod resize;
pub mod resume;
pub mod rules;
pub mod search;
pub mod seen;
mod settle;

pub use attach::put_back_stranger;
pub use fenced::Fence;
pub use limiting::LimitError;
pub use names::IDLE;
pub use observe::{JobForACard, MemoryLevel};
pub use open::{Freed, Opening, controllers};
pub use own::{Leftovers, marked_by_another, open_existing, remove_if_empty, unrecorded};
