// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence login`: the limits of a user on this node, and how much of the budget is used.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use jobfence::config::LoginLimits;
use jobfence::report::json::{Object, array};

use super::files::{self, LoginUser, SCHEMA};
use crate::asked;
use crate::command::Failure;
use crate::configured::Configured;
use crate::living::user_name;
use crate::table::clock;

#[derive(Args)]
pub struct LoginOptions {
    /// This user, by name or number [default: for root all, otherwise the caller]
    #[arg(long, value_name = "USER", value_parser = asked::user)]
    user: Option<(u32, Option<String>)>,
    /// Print one JSON object, whose members jobfence(8) lists
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    configured: Configured,
}

/// Prints what holds for each user. Only root sees other users.
pub fn login(options: &LoginOptions) -> Result<ExitCode, Failure> {
    let config = options.configured.load()?.config;
    let caller = nix::unistd::getuid();
    let one = options.user.as_ref().map(|(uid, _)| *uid).or_else(|| (!caller.is_root()).then(|| caller.as_raw()));
    if let Some(uid) = one.filter(|uid| !caller.is_root() && *uid != caller.as_raw()) {
        return Err(format!("only root sees the limits of {}", user_name(uid)).into());
    }
    let mut users = match one {
        Some(uid) => files::of(&config.run_dir, uid).into_iter().collect(),
        None => files::all(&config.run_dir)?,
    };
    users.sort_by_key(|user| user.uid);
    if options.json {
        println!("{}", document(&users));
        return Ok(ExitCode::SUCCESS);
    }
    if config.login_limits == LoginLimits::No && users.is_empty() {
        println!("The users of this node are not limited (LoginLimits=no).");
    } else if users.is_empty() {
        println!("Nothing is known yet of a user's limits on this node; jobfence.service limits users.");
    }
    for (at, user) in users.iter().enumerate() {
        if at > 0 {
            println!();
        }
        lines(user, &user_name(user.uid)).iter().for_each(|line| println!("{line}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn lines(user: &LoginUser, name: &str) -> Vec<String> {
    let time = |seconds: f64| clock(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let limits = user.limits.as_deref().unwrap_or("no limits");
    let mut lines = vec![match (user.is_observed, &user.place) {
        (true, _) => format!("{name} would have, for all processes together: {limits} (Mode=observe)"),
        (false, None) => format!("{name} is not limited now"),
        (false, Some(_)) => format!("{name} has, for all processes together: {limits}"),
    }];
    let Some((seconds, cpus)) = user.budget else { return lines };
    let (budget, window) = (time(seconds as f64), time(user.window as f64));
    lines.push(match &user.until {
        Some(until) => {
            let cpus = cpus.in_words();
            format!("  {budget} of CPU time within {window} are used up: {cpus} until {until}")
        }
        None => format!("  used {} of {budget} of CPU time within {window}", time(user.used.used())),
    });
    lines
}

fn document(users: &[LoginUser]) -> String {
    let node = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let one = |user: &LoginUser| {
        let budget = user.budget;
        Object::new()
            .add("uid", user.uid)
            .text("user", Some(&user_name(user.uid)))
            .text("limits", user.limits.as_deref())
            .add("observed", user.is_observed)
            .add("limited", user.place.is_some() && !user.is_observed)
            .add("budget_seconds", budget.map_or_else(|| "null".to_owned(), |(seconds, _)| seconds.to_string()))
            .add("budget_cpus", budget.map_or_else(|| "null".to_owned(), |(_, cpus)| cpus.to_string()))
            .add("window_seconds", user.window)
            .add("used_seconds", user.used.used().floor())
            .text("until", user.until.as_deref())
            .end()
    };
    Object::new()
        .text("schema", Some(SCHEMA))
        .text("node", node.as_deref())
        .add("users", array(users.iter().map(one)))
        .end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_says_what_holds_and_what_is_used() {
        let mut user = LoginUser { limits: Some("2 CPUs".to_owned()), window: 86_400, ..LoginUser::new(7, "boot") };
        assert_eq!(lines(&user, "a"), ["a is not limited now"]);
        user.place = Some(files::LimitedPlace::Fence(String::new()));
        assert_eq!(lines(&user, "a"), ["a has, for all processes together: 2 CPUs"]);
        user.budget = Some((14_400, jobfence::job::Cpus::from_thousandths(500)));
        assert_eq!(lines(&user, "a")[1], "  used 0:00 of 4:00:00 of CPU time within 1-00:00:00");
        user.until = Some("2026-11-30 15:04:05".to_owned());
        let expected = "  4:00:00 of CPU time within 1-00:00:00 are used up: 0.5 CPUs until 2026-11-30 15:04:05";
        assert_eq!(lines(&user, "a")[1], expected);
        user.is_observed = true;
        assert_eq!(lines(&user, "a")[0], "a would have, for all processes together: 2 CPUs (Mode=observe)");
        let value: serde_json::Value = serde_json::from_str(&document(&[user])).unwrap();
        assert_eq!((&value["schema"], &value["users"][0]["budget_seconds"]), (&SCHEMA.into(), &14_400.into()));
    }
}
