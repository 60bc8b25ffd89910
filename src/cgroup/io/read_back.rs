// SPDX-License-Identifier: GPL-2.0-or-later
//! Compares what was written with what the kernel shows then.

use crate::error::{Error, Result};
use crate::sys::dir::Dir;

pub(super) fn seen(dir: &Dir, file: &str, want: &str, found: &str) -> Result<()> {
    if want == found {
        return Ok(());
    }
    Err(Error::new("the limit was written, but the kernel shows another:")
        .at(dir.path().join(file))
        .value(format!("wanted {want}, found {found}")))
}
