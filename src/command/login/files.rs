// SPDX-License-Identifier: GPL-2.0-or-later
//! Keeps what is known of a user in a file that only root and that user can read. The file outlives the program, and not the boot.

use std::path::Path;
use std::time::Duration;

use jobfence::error::Result;
use jobfence::job::Cpus;
use jobfence::sys::process::Owner;
use serde_json::{Value, json};

use super::budget::UsedBudget;
use crate::series;

/// The format of the file, and of each user's object in `jobfence login --json`.
pub const SCHEMA: &str = "jobfence-login-1";

const ENDING: &str = ".login";

/// The file's name behind the uid, which is part of the name, too.
const NAME: &str = "login";

/// Where a user is limited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitedPlace {
    /// systemd limits the user's slice. The properties are those that give back the earlier values.
    Slice(Vec<String>),
    /// jobfence limits the user in a fence. The text is the cgroups from which the user's processes came, as `/proc/PID/cgroup` has them.
    Fence(String),
}

/// What is known of one user.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoginUser {
    pub uid: u32,
    pub boot_id: String,
    /// The program that keeps the limits.
    pub keeper: Option<Owner>,
    /// `None`: this user is not limited now.
    pub place: Option<LimitedPlace>,
    /// The values that were set last, in the words of that place.
    pub set: Vec<String>,
    pub used: UsedBudget,
    /// The user's CPU time at the last look, and the number of the directory that counted it.
    pub counter: Option<(u64, f64)>,
    /// Whether the user was told of the limit that holds now.
    pub is_told: bool,
    /// What `jobfence login` shows: the limits in words, the budget in seconds with the CPUs that remain after it, and the window in
    /// seconds.
    pub limits: Option<String>,
    pub budget: Option<(u64, Cpus)>,
    pub window: u64,
    /// When the limit of the budget ends, as people write it.
    pub until: Option<String>,
    /// Whether nothing is set because of Mode=observe.
    pub is_observed: bool,
    /// Whether the user had no file: it may have been lost. This is not kept.
    pub is_new: bool,
}

impl LoginUser {
    pub fn new(uid: u32, boot_id: &str) -> Self {
        Self { uid, boot_id: boot_id.to_owned(), is_new: true, ..Self::default() }
    }

    /// Takes the counter, and returns what was used since the last look, in seconds. What was used before the first look does not count.
    pub fn count(&mut self, counter: Option<(u64, Duration)>) -> f64 {
        let Some((directory, now)) = counter.map(|(directory, now)| (directory, now.as_secs_f64())) else {
            // A new directory counts from zero, so all of its CPU time is new.
            return 0.0;
        };
        match self.counter.replace((directory, now)) {
            None => 0.0,
            Some((same, before)) if same == directory && before <= now => now - before,
            Some(_) => now,
        }
    }

    pub fn json(&self) -> Value {
        let (way, back) = match &self.place {
            None => (None, Value::Null),
            Some(LimitedPlace::Slice(back)) => (Some("slice"), json!(back)),
            Some(LimitedPlace::Fence(from)) => (Some("fence"), json!(from)),
        };
        json!({
            "schema": SCHEMA,
            "uid": self.uid,
            "boot": self.boot_id,
            "keeper": self.keeper.map(|keeper| json!([keeper.pid, keeper.start])),
            "way": way,
            "back": back,
            "set": self.set,
            "used": self.used.json(),
            "counter": self.counter.map(|(directory, seconds)| json!([directory, seconds])),
            "told": self.is_told,
            "limits": self.limits,
            "budget": self.budget.map(|(seconds, cpus)| json!([seconds, cpus.thousandths()])),
            "window": self.window,
            "until": self.until,
            "observed": self.is_observed,
        })
    }

    pub fn from_json(value: &Value) -> Option<Self> {
        if value["schema"] != SCHEMA {
            return None;
        }
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let texts = |value: &Value| value.as_array().into_iter().flatten().filter_map(text).collect::<Vec<_>>();
        let place = match value["way"].as_str() {
            Some("slice") => Some(LimitedPlace::Slice(texts(&value["back"]))),
            Some("fence") => Some(LimitedPlace::Fence(text(&value["back"])?)),
            _ => None,
        };
        let keeper = &value["keeper"];
        let pid = keeper[0].as_i64().and_then(|pid| i32::try_from(pid).ok());
        let counter = &value["counter"];
        Some(Self {
            uid: u32::try_from(value["uid"].as_u64()?).ok()?,
            boot_id: text(&value["boot"])?,
            keeper: pid.zip(keeper[1].as_u64()).map(|(pid, start)| Owner { pid, start }),
            place,
            set: texts(&value["set"]),
            used: UsedBudget::from_json(&value["used"]),
            counter: counter[0].as_u64().zip(counter[1].as_f64()),
            is_told: value["told"] == true,
            limits: text(&value["limits"]),
            budget: value["budget"][0].as_u64().zip(value["budget"][1].as_u64().map(Cpus::from_thousandths)),
            window: value["window"].as_u64().unwrap_or(0),
            until: text(&value["until"]),
            is_observed: value["observed"] == true,
            is_new: false,
        })
    }
}

pub fn write(run_dir: &Path, user: &LoginUser) -> Result<()> {
    series::write_file(run_dir, (Some(user.uid), NAME, ENDING), &user.json().to_string())
}

pub fn remove(run_dir: &Path, uid: u32) {
    series::remove_file(run_dir, (Some(uid), NAME, ENDING));
}

/// What is known of this user. `None`: there is no file, or the caller may not read it.
pub fn of(run_dir: &Path, uid: u32) -> Option<LoginUser> {
    let value = series::read_file(run_dir, (Some(uid), NAME, ENDING))?;
    LoginUser::from_json(&value).filter(|user| user.uid == uid)
}

/// All users that have a file, even one of an earlier boot.
pub fn all(run_dir: &Path) -> Result<Vec<LoginUser>> {
    Ok(series::all_files(run_dir, ENDING)?.iter().filter_map(LoginUser::from_json).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_the_same() {
        let mut user = LoginUser {
            keeper: Some(Owner { pid: 7, start: 9 }),
            place: Some(LimitedPlace::Slice(vec!["CPUQuota=".into(), "TasksMax=7".into()])),
            set: vec!["CPUQuota=50%".into()],
            counter: Some((3, 1.5)),
            is_told: true,
            limits: Some("2 CPUs".into()),
            budget: Some((3600, Cpus::from_thousandths(500))),
            window: 7200,
            until: Some("15:04".into()),
            is_observed: true,
            is_new: false,
            ..LoginUser::new(1000, "boot")
        };
        user.used.look(100.0, 5.0, Some(Duration::from_secs(60)), Duration::from_secs(60));
        assert_eq!(LoginUser::from_json(&user.json()), Some(user.clone()));
        user.place = Some(LimitedPlace::Fence("0::/\n".into()));
        assert_eq!(LoginUser::from_json(&user.json()), Some(user.clone()));
        assert_eq!(LoginUser::from_json(&json!({"schema": "jobfence-login-2", "uid": 1, "boot": ""})), None);
    }

    #[test]
    fn a_counter_that_begins_anew_is_counted_whole() {
        let mut user = LoginUser::new(1000, "boot");
        let mut count = |directory, seconds| user.count(Some((directory, Duration::from_secs(seconds))));
        assert_eq!([count(1, 100), count(1, 107), count(2, 3), count(2, 3), count(2, 1)], [0.0, 7.0, 3.0, 0.0, 1.0]);
        assert_eq!((user.count(None), user.counter), (0.0, Some((2, 1.0))));
    }
}
