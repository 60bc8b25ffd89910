// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence --version`: for what it was built, and the numbers of its interfaces. `-V` is the first line alone.

use std::sync::LazyLock;

use jobfence::doors::{c_abi, seen};
use jobfence::report::{account, nodes};
use jobfence::{config, private, record};

use crate::host::grantable;
use crate::schedulers;
use crate::{check, gpu, idle, lend, living, login, network, own_report, report, resctrl, series, strays};

/// The version, as it stands behind the command's name.
pub fn long() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(text);
    &TEXT
}

fn text() -> String {
    let records = record::FORMS
        .iter()
        .map(|form| form.trim_end())
        .chain([nodes::MAGIC, private::FORM, private::FORM_THAT_HIDES])
        .collect::<Vec<_>>()
        .join(", ");
    let schemas = [
        account::SCHEMA,
        check::SCHEMA,
        living::SCHEMA,
        report::SCHEMA,
        series::SCHEMA,
        gpu::SCHEMA,
        idle::SCHEMA,
        lend::SCHEMA,
        own_report::SCHEMA,
        strays::SCHEMA,
        login::SCHEMA,
        report::SUMMARY_SCHEMA,
        network::SCHEMA,
        resctrl::SCHEMA,
    ]
    .join(", ");
    let of_schedulers =
        schedulers::ALL.iter().filter_map(|part| Some(format!("{}: {}", part.name(), part.releases()?)));
    let mut lines = vec![jobfence::VERSION.to_owned(), format!("built for: {}", jobfence::BUILT_FOR)];
    lines.extend(of_schedulers);
    lines.extend([
        format!("configuration: {}", config::FORM),
        format!("records: {records}"),
        format!("C ABI: {}", c_abi::ABI_VERSION),
        format!("JSON: {schemas}, host {}, usage {}", grantable::SCHEMA, seen::SCHEMA),
    ]);
    lines.join("\n")
}
