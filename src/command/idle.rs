// SPDX-License-Identifier: GPL-2.0-or-later
//! Jobs that hold what they do not use: `IdleAfter` and `GPUIdleAfter`, the sentence to their users, and what is done to them then.
//!
//! `activity` says for how long a job has used almost no CPU time, `decision` what follows from an idle time, `keys` what the site wants
//! of a job, `files` keeps what is known, `sampler` looks at the jobs of this node, and `act` speaks and ends. All of it is done by
//! `jobfence hold`, and nothing in a scheduler's daemon.

mod act;
mod activity;
mod decision;
mod files;
mod keys;
mod sampler;

use std::time::Duration;

pub use act::{IdleJob, IdleKind, follow};
pub use decision::{Decision, IdleLook};
pub use files::{JobIdle, living};
pub use keys::{IdleKeys, keys_of};
pub use sampler::{IdleSampler, states, time_between};

/// How long the schedulers' programs may keep `jobfence hold` from its work at each look. Jobs that are left have their turn at the next.
pub const PATIENCE: Duration = Duration::from_secs(15);
