// SPDX-License-Identifier: GPL-2.0-or-later
//! A user's word: lines `cpu-limit=0.5`, those of the job before a line `--`, those of the step behind it. It raises nothing.

use jobfence::config::{Config, Limit, LimitNumbers};
use jobfence::job::{Cpus, Grant};
use jobfence::policy::{Level, obey, plan};
use jobfence::requests::{REQUESTS, Requests, UserRequests};

use super::is_readable;

pub const WORDS: &[&str] = &[
    "cpu-limit=0.5\n",
    "cpu-burst=20%\n",
    "mem-high=2G\n",
    "pids-max=100\n",
    "io-max=/scratch rbps=200M\n",
    "--\n",
    "/a/b,wbps=1048576;",
    "/c riops=100 wiops=100; ",
    "none",
    "KiB",
];

/// Nobody can give a step more than fits in here with a NUL (`api::Spank::getenv`).
const BUFFER: usize = 1024;

pub fn run(data: &[u8]) {
    let mut word = UserRequests::default();
    let mut of_step = false;
    for line in data.split(|&byte| byte == b'\n') {
        if line == b"--" {
            of_step = true;
            continue;
        }
        let Some(at) = line.iter().position(|&byte| byte == b'=') else { continue };
        let (name, value) = (&line[..at], &line[at + 1..]);
        let Some(request) = REQUESTS.iter().find(|request| request.name.as_bytes() == name) else { continue };
        let requests = if of_step { &mut word.step } else { &mut word.job };
        let before = requests.clone();
        if let Err(error) = request.read("--x", value, requests) {
            assert_eq!(*requests, before);
            is_readable(&error.to_string());
        }
        // What is handed on is read again.
        let mut again = Requests::default();
        for request in REQUESTS {
            let Some(value) = request.value(requests) else { continue };
            assert!(value.len() < BUFFER, "{} of {} bytes", request.name, value.len());
            let read = request.read("--x", value.as_bytes(), &mut again);
            assert!(read.is_ok(), "--{}={value}: {read:?}", request.name);
        }
        assert_eq!(again, *requests);
    }
    let site = Config { numbers: LimitNumbers::with(Limit::Processes, 50), memory_high: None, ..Config::default() };
    let before = plan(&site, &Grant::whole(Some(Cpus::whole(2)), Some(1 << 30))).0;
    let mut after = before.clone();
    for (_, error) in obey(&mut after, &site, &word) {
        is_readable(&error.to_string());
    }
    for level in [Level::User, Level::Job, Level::Step, Level::Task] {
        let (now, was) = (after.of(level), before.of(level));
        // What the lower of both leaves as it is is nowhere above.
        assert_eq!(*now, now.clone().at_most(was.clone()), "{level}");
    }
    // A step's own word says nothing of its job.
    assert_eq!(after.user, before.user);
}
