// SPDX-License-Identifier: GPL-2.0-or-later
//! Jobs that hold what they do not use: `IdleAfter` and `GPUIdleAfter`, the sentence to their users, and what is done to them then.
//!
//! `activity` says for how long a job has used almost no CPU time, `decision` what follows from an idle time, `keys` what the site wants
//! of a job, `files` keeps what is known, `pauses` says
//! what time does not count, `sampler` looks at the jobs of this node, and `act` speaks and ends. All of it is done by
//! `jobfence hold`, and nothing in a scheduler's daemon.

mod act;
mod activity;
mod decision;
mod files;
mod keys;
mod pauses;
mod sampler;

use std::time::Duration;

pub use act::{IdleJob, IdleKind, follow};
pub use decision::{IdleDecision, IdleLook};
pub use files::{JobIdle, SCHEMA};
pub use keys::{IdleKeys, keys_of};
pub use pauses::{speed, states, time_between};
pub use sampler::IdleSampler;

/// How long the schedulers' programs may keep `jobfence hold` from its work at each look. Jobs that are left have their turn at the next.
pub const PATIENCE: Duration = Duration::from_secs(15);
