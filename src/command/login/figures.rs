// SPDX-License-Identifier: GPL-2.0-or-later
//! The metrics about users of a login node.

use std::fmt::Write as _;
use std::path::Path;

use super::files::{self, LoginUser};
use crate::living::user_name;

/// The lines in the format of the metrics file. `None`: no user is known.
pub fn page(run_dir: &Path) -> Option<String> {
    let users: Vec<(String, LoginUser)> =
        files::all(run_dir).ok()?.into_iter().map(|user| (user_name(user.uid), user)).collect();
    (!users.is_empty()).then(|| page_of(&users))
}

fn page_of(users: &[(String, LoginUser)]) -> String {
    let mut page = String::new();
    let cpu = |user: &LoginUser| user.counter.map(|(_, seconds)| seconds);
    let budget = |user: &LoginUser| user.budget.as_ref().map(|(seconds, _)| *seconds as f64);
    let used = |user: &LoginUser| user.budget.as_ref().map(|_| user.used.used());
    let limited = |user: &LoginUser| user.budget.as_ref().map(|_| f64::from(u8::from(user.used.is_limited())));
    type LoginFigure<'a> = (&'a str, &'a str, &'a str, &'a dyn Fn(&LoginUser) -> Option<f64>);
    let figures: [LoginFigure<'_>; 4] = [
        ("jobfence_login_cpu_seconds_total", "counter", "CPU time of a user's sessions on this node.", &cpu),
        ("jobfence_login_budget_seconds", "gauge", "CPU time that a user has in a window.", &budget),
        ("jobfence_login_budget_used_seconds", "gauge", "CPU time that a user has used of it.", &used),
        ("jobfence_login_budget_exceeded", "gauge", "Whether a user has fewer CPUs for having used it up.", &limited),
    ];
    for (name, kind, help, value) in figures {
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (user, seconds) in users.iter().filter_map(|(name, user)| Some((name, value(user)?))) {
            let user = user.replace(['\\', '"', '\n'], "?");
            let _ = writeln!(page, "{name}{{user=\"{user}\"}} {seconds}");
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_user_has_a_line() {
        let mut user = LoginUser { counter: Some((1, 7.5)), ..LoginUser::new(1000, "boot") };
        assert!(!page_of(&[("a".to_owned(), user.clone())]).contains("budget_seconds{"));
        user.budget = Some((60, jobfence::job::Cpus::whole(1)));
        user.used.look(100.0, 5.0, Some(Duration::from_secs(60)), Duration::from_secs(60));
        let page = page_of(&[("a\"b".to_owned(), user)]);
        for line in [
            "jobfence_login_cpu_seconds_total{user=\"a?b\"} 7.5\n",
            "jobfence_login_budget_seconds{user=\"a?b\"} 60\n",
            "jobfence_login_budget_used_seconds{user=\"a?b\"} 5\n",
            "jobfence_login_budget_exceeded{user=\"a?b\"} 0\n",
        ] {
            assert!(page.contains(line), "{page}");
        }
    }
}
