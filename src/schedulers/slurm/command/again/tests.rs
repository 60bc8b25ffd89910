// SPDX-License-Identifier: GPL-2.0-or-later

use serde_json::json;

use super::*;
use crate::logged::LoggedStep;

fn run(granted: u64, cpus: u64) -> KilledRun {
    let line = json!({
        "job": "12", "uid": 7, "started_unix_seconds": 1000.5, "ended": "2026-11-25T03:00:10Z", "memory_granted_bytes": granted << 20,
        "cpus_granted": cpus,
    });
    KilledRun::from_line(LoggedStep::new(line)).unwrap()
}

fn job(state: &str, restarts: u32, reason: &str) -> String {
    format!("12|12_2|7|{state}|{restarts}|1|all|n[1-2]|1000|2000|{reason}|\n")
}

#[test]
fn the_state_of_the_run_decides() {
    let begun = KilledRun { restarts: Some(1), ..run(100, 1) };
    let of = |said: &str| find(said, &begun).map(|job| state(&job, &begun));
    let other = |state: &str| Ok(Some(JobNow::Other(format!("Slurm says that it is {state}"))));
    // The last of an array has the array's number.
    let array = "13|12_1|7|RUNNING|0|1|all|n1|1000|9|None|\n".to_owned() + &job("FAILED", 1, "NonZeroExitCode");
    assert_eq!(of(&array), Ok(None));
    assert_eq!(find(&array, &run(100, 1)).unwrap().name, "12_2");
    for (said, expected) in [
        (job("OUT_OF_MEMORY", 1, "OutOfMemory"), Ok(None)),
        (job("COMPLETING", 1, "None"), Ok(Some(JobNow::Ending { restarts: 1 }))),
        (job("RUNNING", 1, "None"), Ok(Some(JobNow::Ending { restarts: 1 }))),
        (job("CANCELLED", 1, "None"), other("CANCELLED")),
        (job("TIMEOUT", 1, "TimeLimit"), other("TIMEOUT")),
        (job("COMPLETED", 1, "None"), other("COMPLETED")),
        (job("PENDING", 2, HELD), Ok(Some(JobNow::Held { asked: None }))),
        // Its user holds it.
        (job("PENDING", 2, "JobHeldUser"), Ok(Some(JobNow::Next))),
        (job("PENDING", 2, "None"), Ok(Some(JobNow::Next))),
        (job("PENDING", 3, HELD), Ok(Some(JobNow::Next))),
        (job("RUNNING", 2, "None"), Ok(Some(JobNow::Next))),
        (job("CANCELLED", 2, "None"), other("CANCELLED")),
    ] {
        assert_eq!(of(&said), expected, "{said}");
    }
    for (said, why) in [
        ("12|12|8|FAILED|1|1|all|n1|1000|2000|None|\n", "Slurm says that it is of the user 8"),
        ("12|12+0|7|FAILED|1|1|all|n1|1000|2000|None|\n", "it is a component of a heterogeneous job"),
        ("12|12|7|FAILED|x|1|all|n1|1000|2000|None|\n", "squeue answers \"x\" for its restarts"),
        ("13|13|7|FAILED|1|1|all|n1|1000|2000|None|\nx\n", PURGED),
    ] {
        assert_eq!(of(said), Err(why.to_owned()));
    }
    let forbids = |state| of(&job(state, 1, "None").replace("|1|all", "|0|all"));
    let why = "it may not be requeued (--no-requeue, or JobRequeue=0 in slurm.conf)".to_owned();
    assert_eq!(forbids("FAILED"), Ok(Some(JobNow::Other(why))));
    // Its user forbids it too late: nobody else would let it go.
    let held = job("PENDING", 2, HELD).replace("|1|all", "|0|all");
    assert_eq!(of(&held), Ok(Some(JobNow::Held { asked: None })));
}

/// The end of a run is slurmctld's word, and nobody else's.
#[test]
fn slurmctld_says_whether_it_has_ended_the_run() {
    let failed = KilledRun { restarts: Some(1), end: RunEnd::Unknown, ..run(100, 1) };
    let of = |said: &str| find(said, &failed).map(|job| (state(&job, &failed), ended(&job, &failed))).unwrap();
    let other = |state: &str| Some(JobNow::Other(format!("Slurm says that it is {state}")));
    for (said, expected) in [
        (job("TIMEOUT", 1, "TimeLimit"), (None, Some(RunEnd::TimeLimit))),
        (job("PREEMPTED", 1, "None"), (None, Some(RunEnd::Preemption))),
        // Whether its user forbids it is said with its end.
        (job("TIMEOUT", 1, "TimeLimit").replace("|1|all", "|0|all"), (None, Some(RunEnd::TimeLimit))),
        (job("COMPLETING", 1, "TimeLimit"), (Some(JobNow::Ending { restarts: 1 }), None)),
        (job("TIMEOUT", 2, "TimeLimit"), (Some(JobNow::Next), Some(RunEnd::TimeLimit))),
        (job("FAILED", 1, "NonZeroExitCode"), (other("FAILED"), None)),
        (job("OUT_OF_MEMORY", 1, "OutOfMemory"), (other("OUT_OF_MEMORY"), None)),
        (job("CANCELLED", 1, "None"), (other("CANCELLED"), None)),
        (job("NODE_FAIL", 1, "None"), (other("NODE_FAIL"), None)),
        (job("DEADLINE", 1, "DeadLine"), (other("DEADLINE"), None)),
        (job("PENDING", 2, "None"), (Some(JobNow::Next), None)),
    ] {
        assert_eq!(of(&said), expected, "{said}");
    }
    let killed = KilledRun { end: RunEnd::Memory, ..failed };
    let found = find(&job("TIMEOUT", 1, "TimeLimit"), &killed).unwrap();
    assert_eq!((state(&found, &killed), ended(&found, &killed)), (other("TIMEOUT"), None));
}

/// The script has the time of KillWait behind the end of its job.
#[test]
fn a_script_may_end_long_after_slurmctld_has_ended_its_job() {
    let failed = KilledRun { end: RunEnd::Unknown, ..run(100, 1) };
    let of = |seconds: i64| {
        let ended = failed.ended.checked_add_signed(seconds).unwrap();
        find(&format!("12|12|7|TIMEOUT|4|1|all|n1|1000|{ended}|TimeLimit|\n"), &failed)
            .map(|job| state(&job, &failed))
            .unwrap()
    };
    assert_eq!([-900, -61, 0, 60].map(of), [const { None }; 4]);
    assert_eq!(of(61), Some(JobNow::Other(NOT_THIS.to_owned())));
}

#[test]
fn another_run_is_told_by_its_time_until_its_number_is_known() {
    let ended = run(100, 1).ended;
    let of = |began: &str, ended: &str, state_of: &str| {
        let said = format!("12|12|7|{state_of}|4|1|all|n1|{began}|{ended}|None|\n");
        find(&said, &run(100, 1)).map(|job| state(&job, &run(100, 1))).unwrap()
    };
    let at = |seconds: i64| ended.checked_add_signed(seconds).unwrap().to_string();
    let (ending, other) = (Some(JobNow::Ending { restarts: 4 }), Some(JobNow::Other(NOT_THIS.to_owned())));
    for began in ["1", "1000", "1060"] {
        assert_eq!((of(began, &at(0), "FAILED"), of(began, "N/A", "COMPLETING")), (None, ending.clone()), "{began}");
    }
    for began in ["1061", "9000", "N/A", ""] {
        let both = (of(began, &at(0), "FAILED"), of(began, "N/A", "RUNNING"));
        assert_eq!(both, (other.clone(), other.clone()), "{began}");
    }
    for (seconds, expected) in [(-60, None), (60, None), (-61, other.clone()), (61, other.clone())] {
        assert_eq!(of("1000", &at(seconds), "FAILED"), expected, "{seconds}");
    }
    // Somebody else has requeued it.
    assert_eq!(of("N/A", "N/A", "PENDING"), Some(JobNow::Next));
}

#[test]
fn what_it_asked_for_is_what_slurm_says_and_has_granted() {
    let shown = |memory: &str| format!("JobId=12 JobName=x MinCPUsNode=1 {memory} MinTmpDiskNode=0 Command=/x\n");
    let of =
        |memory: &str, granted, cpus| asked(&shown(memory)).and_then(|asked| as_granted(asked, &run(granted, cpus)));
    assert_eq!(of("MinMemoryNode=1536M", 1536, 4), Ok(AskedMemory { unit: MemoryUnit::Node, mib: 1536 }));
    assert_eq!(of("MinMemoryCPU=1.50G", 6144, 4), Ok(AskedMemory { unit: MemoryUnit::Cpu, mib: 1536 }));
    assert_eq!(of("MinMemoryNode=0", 9000, 1), Ok(AskedMemory { unit: MemoryUnit::Node, mib: 0 }));
    for (memory, granted) in [
        ("MinMemoryNode=100M", 200),
        ("MinMemoryCPU=100M", 100),
        ("MinMemoryTRES=100M", 100),
        ("MinMemoryNode=", 100),
        ("MinMemoryNode=x", 100),
        ("MinMemoryNode=100M MinCPUsNode=1", 100),
    ] {
        assert!(of(memory, granted, 2).is_err(), "{memory}");
    }
    let forged = format!("JobId=12 JobName=MinCPUsNode=1 MinMemoryNode=1M {}", shown("MinMemoryNode=100M"));
    assert!(asked(&forged).is_err());
}

#[test]
fn amounts_are_slurms() {
    for (text, mib) in [
        ("100M", Some(100)),
        ("100", Some(100)),
        ("2G", Some(2048)),
        ("1.50G", Some(1536)),
        ("1.5G", Some(1536)),
        ("1T", Some(1 << 20)),
        ("0", Some(0)),
        ("", None),
        ("M", None),
        ("-1M", None),
        ("1K", None),
        ("99999999999999999999M", None),
    ] {
        assert_eq!(mebibytes(text), mib, "{text}");
    }
}

#[test]
fn bounds_are_those_of_the_partition_and_the_nodes() {
    assert_eq!(most_of("PartitionName=all State=UP MaxMemPerNode=500 TRES=cpu=2,mem=1M"), (Some(500), None));
    assert_eq!(most_of("PartitionName=all MaxMemPerCPU=500"), (None, Some(500)));
    assert_eq!(most_of("PartitionName=all MaxMemPerNode=UNLIMITED"), (None, None));
    assert_eq!(most_of("MaxJobCount             = 10\nMaxMemPerNode           = 700\n"), (Some(700), None));
    assert_eq!(memory_of("NodeName=n1 RealMemory=1000 AllocMem=0 MemSpecLimit=100"), Some(900));
    assert_eq!(memory_of("NodeName=n1 RealMemory=1000 AllocMem=0"), Some(1000));
    assert_eq!(memory_of("NodeName=n1"), None);
}

#[test]
fn the_cpus_are_those_of_all_nodes() {
    let shown = "JobId=12 Nodes=n1 CPU_IDs=0-3 Mem=400 GRES= Nodes=n[2-3] CPU_IDs=0,2 Mem=200 GRES= MinCPUsNode=1";
    assert_eq!((cpus_of(shown, 4), cpus_of(shown, 1), cpus_of("JobId=12", 3)), ((2, 4), (1, 4), (3, 3)));
}

#[test]
fn a_controller_that_does_not_answer_has_refused_nothing() {
    for said in [
        "slurm_update error: Unable to contact slurm controller (connect failure)",
        "Socket timed out on send/recv operation",
        "SIGKILL has ended it",
        "Job update not available right now, the DB index is being set, try again in a bit",
        "Rate limit exceeded, please retry later",
        "Protocol authentication error",
        "Slurm backup controller in standby mode",
        "Message receive failure",
        "auth/munge: Unable to retrieve: Munge daemon is not responding",
        "scontrol: error while loading shared libraries: libslurmfull.so",
        "Required partition not available (inactive or drain)",
        "Job/step already completing or completed",
        "",
    ] {
        assert!(!is_refusal(said), "{said}");
    }
    for said in [
        "Access/permission denied for job 2",
        "Requested operation is presently disabled for job 2",
        "slurm_update error: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
    ] {
        assert!(is_refusal(said), "{said}");
    }
}
