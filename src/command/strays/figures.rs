// SPDX-License-Identifier: GPL-2.0-or-later
//! The metrics about strays.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The counts of `jobfence hold`.
#[derive(Debug, Clone, Default)]
pub struct StraysFigures {
    /// How many strays each user had at the last look.
    pub by_user: BTreeMap<String, usize>,
    /// How many containers in no fence there were at the last look.
    pub containers: usize,
    /// How many strays have been put into jobs since `jobfence hold` began.
    pub adopted: u64,
    /// How many strays have been sent SIGTERM or SIGKILL since `jobfence hold` began.
    pub ended: u64,
}

impl StraysFigures {
    /// The lines in the format of the metrics file.
    pub fn page(&self) -> String {
        let mut page = String::new();
        let head = |name: &str, kind: &str, help: &str| format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        page += &head("jobfence_stray_processes", "gauge", "Processes of a user's that are in no fence.");
        for (user, count) in &self.by_user {
            let user = user.replace(['\\', '"', '\n'], "?");
            let _ = writeln!(page, "jobfence_stray_processes{{user=\"{user}\"}} {count}");
        }
        page += &head("jobfence_stray_containers", "gauge", "Containers of a daemon's that are in no fence.");
        let _ = writeln!(page, "jobfence_stray_containers {}", self.containers);
        for (name, help, count) in [
            ("jobfence_strays_adopted_total", "Processes in no fence that were put into jobs.", self.adopted),
            ("jobfence_strays_ended_total", "Processes in no fence that were sent a signal to end.", self.ended),
        ] {
            page += &head(name, "counter", help);
            let _ = writeln!(page, "{name} {count}");
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_line() {
        let figures = StraysFigures { by_user: [("a\"b".to_owned(), 3)].into(), containers: 4, adopted: 1, ended: 2 };
        let page = figures.page();
        for line in [
            "jobfence_stray_processes{user=\"a?b\"} 3\n",
            "jobfence_stray_containers 4\n",
            "jobfence_strays_adopted_total 1\n",
            "jobfence_strays_ended_total 2\n",
        ] {
            assert!(page.contains(line), "{page}");
        }
    }
}
