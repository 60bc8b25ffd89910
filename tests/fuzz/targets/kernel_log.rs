// SPDX-License-Identifier: GPL-2.0-or-later
//! /dev/kmsg: an input is a record, and then the name of a process and of the cgroup that it has made for itself, by which it would
//! have another step take its death for its own.

use jobfence::cgroup::events::OomKill;

use super::text;

pub const WORDS: &[&str] = &[
    "6,1134,85220,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,",
    "oom_memcg=/jobfence/uid_1/job_2",
    ",task_memcg=/jobfence/uid_1/job_2/step_0",
    ",task=",
    ",pid=7",
    ",uid=0",
    "global_oom",
    "\\x0a",
];

pub fn run(data: &[u8]) {
    let text = text(data);
    if let Some(kill) = OomKill::parse(&text) {
        assert!(kill.name.chars().count() <= 32 && !kill.name.chars().any(char::is_control));
        assert!(kill.limit_at.as_deref().is_none_or(|limit| is_below(&kill.task_in, limit)), "{kill:?}");
        // Only the kernel writes with facility 0.
        let priority = text.split([',', ';']).next().and_then(|number| number.parse::<u32>().ok());
        assert!(priority.is_some_and(|priority| priority < 8));
    }
    // What the kernel prints of whatever the user has chosen (it escapes what is not printable).
    let chosen: String = text.chars().filter(|c| c.is_ascii_graphic()).take(200).collect();
    let (name, directory) = chosen.split_at(chosen.len().min(15));
    let name = name.replace('/', "_");
    let place = format!("/user.slice/{directory}");
    for limit in ["oom_memcg=/user.slice".to_owned(), format!("oom_memcg={place}"), "global_oom".to_owned()] {
        let line = format!(
            "6,1,1,-;oom-kill:constraint=X,mems_allowed=0,{limit},task_memcg={place},task={name},pid=77,uid=1\n"
        );
        let Some(kill) = OomKill::parse(&line) else { continue };
        assert_eq!(kill.pid, 77);
        assert!(is_below(&kill.task_in, "/user.slice"), "{kill:?} of {line:?}");
    }
    let plain = format!("6,1,1,-;oom-kill:x,oom_memcg=/a,task_memcg=/a/b,task={name},pid=77,uid=1\n SUBSYSTEM=x\n");
    let kill = OomKill::parse(&plain).expect("the kernel's line");
    assert_eq!((kill.task_in.as_str(), kill.pid, kill.name), ("/a/b", 77, name));
}

fn is_below(path: &str, directory: &str) -> bool {
    let directory = directory.trim_end_matches('/');
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
