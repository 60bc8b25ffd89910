// SPDX-License-Identifier: GPL-2.0-or-later
//! The one life cycle of a fence: open, limit, attach, settle, observe, close; a file for each.
//!
//! It knows no scheduler but as somebody who has directories and words of its own. Every operation may be repeated, and the last step
//! out takes the job's and the user's directories along; nothing is locked for that: making a directory starts again when a parent
//! has vanished, and removing one that is in use fails without harm.

mod attach;
mod close;
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
pub mod present;
pub mod resume;
pub mod rules;
mod settle;

pub use attach::put_back_stranger;
pub use fenced::Fence;
pub use limiting::LimitError;
pub use names::IDLE;
pub use observe::{JobForACard, MemoryLevel};
pub use open::{Freed, Opening, controllers};
pub use own::{Leftovers, marked_by_another, open_existing, remove_if_empty, unrecorded};
