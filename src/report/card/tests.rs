// SPDX-License-Identifier: GPL-2.0-or-later
//! Cards of jobs, as their users read them.

use proptest::prelude::*;

use super::*;

use crate::cgroup::disk::Device;
use crate::cgroup::io::{DiskLimit, IoRates};
use crate::fence::JobForACard;
use crate::figures::{DiskIo, Usage};
use crate::job::Cpus;
use crate::report::nodes::{NodeFigures, Nodes};

const GIB: u64 = 1 << 30;

static WORDS: Words = Words {
    memory: |bytes| format!("--mem={}", crate::bytes::text(bytes)),
    cpus: |count| format!("--cpus={count}"),
    all_cpus: "--tasks times --cpus",
    time: Some(|time| format!("--time={}", time.as_secs())),
    signal_15: Some("A cancelled job is ended by signal 15."),
};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// 20 minutes of 4 CPUs and 4 GiB on one node, all well used.
fn usage() -> Usage {
    Usage {
        cpu: Some(seconds(4500)),
        periods: Some(12_000),
        throttled_periods: Some(3),
        throttled: Some(Duration::from_millis(90)),
        memory_peak: Some(3400 << 20),
        swap_peak: Some(0),
        memory_file: Some(20 << 20),
        memory_high_events: Some(0),
        memory_max_events: Some(0),
        oom_kills: Some(0),
        processes_peak: Some(9),
        forks_refused: Some(0),
        ..Usage::from_disks(vec![DiskIo { disk: (8, 0), read: 5 * GIB, written: GIB / 2, reads: 9, writes: 9 }])
    }
}

fn with_disk(usage: Usage, disk: DiskIo) -> Usage {
    let mut all = Usage::from_disks(vec![disk]);
    all.or(&usage);
    all
}

fn figures(usage: &Usage) -> Figures<'_> {
    Figures {
        job: "1234",
        name: None,
        node: Some("n1"),
        is_array_task: false,
        exit: Some(Exit::Status(0)),
        wall: Some(seconds(1205)),
        time_limit: None,
        cpus: Some(Cpus::whole(4)),
        cpus_limit: Some(Cpus::whole(4)),
        memory: Some(4 * GIB),
        memory_limit: Some(4 * GIB),
        is_without_swap: true,
        processes: None,
        has_daemons: false,
        disks: &[],
        usage,
        tasks: Some(1),
        nodes: Some(1),
        others: None,
        sentences: &[],
        noted: "",
        is_utf8: false,
        words: &WORDS,
    }
}

#[test]
fn bars_are_ascii_unless_the_locale_is_utf8() {
    let of = |all: &[(&str, &str)]| {
        is_utf8(|name| all.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    };
    assert!(of(&[("LANG", "de_DE.UTF-8")]) && of(&[("LC_ALL", ""), ("LC_CTYPE", "C.utf8")]));
    assert!(!of(&[]) && !of(&[("LANG", "C")]) && !of(&[("LANG", "C.UTF-8"), ("LC_ALL", "C")]));
}

fn card(figures: &Figures<'_>) -> String {
    lines(UsageCard::Always, None, figures).join("\n") + "\n"
}

/// Less is advised only if the usage on every node is known.
#[test]
fn without_a_nodes_figures_nothing_less_is_advised() {
    let usage = Usage { cpu: Some(seconds(600)), memory_peak: Some(500 << 20), ..usage() };
    let found = JobForACard {
        usage: usage.clone(),
        cpus_limit: None,
        memory_limit: Some(4 * GIB),
        is_without_swap: true,
        has_daemons: false,
    };
    let node = |memory| NodeFigures::new(&found, Some(Cpus::whole(4)), Some(memory));
    let of = |memory, silent: &[&str], is_unfinished| {
        let known = vec![("n1".to_owned(), node(4 * GIB)), ("n2".to_owned(), node(memory))];
        let silent = silent.iter().map(|&name| name.to_owned()).collect();
        let nodes = Nodes { known, silent, is_unfinished };
        let figures = Figures { nodes: Some(2), others: Some(&nodes), ..figures(&usage) };
        (figures.advice(), card(&figures))
    };
    let (advice, text) = of(4 * GIB, &[], false);
    assert!(advice.memory.is_some() && advice.cpus.is_some() && !text.contains("the use of"), "{text}");
    let (advice, text) = of(4 * GIB, &["n3", "n\x1b[31m"], false);
    assert!(advice.memory.is_none() && advice.cpus.is_none() && text.contains("the use of n3, n?[31m"), "{text}");
    assert!(of(4 * GIB, &[], true).0.memory.is_none());
    let (advice, _) = of(2 * GIB, &[], false);
    assert!(advice.memory.is_none() && advice.cpus.is_some());
}

#[test]
fn files_have_a_row_where_disks_tell_little_of_much() {
    let row = |rchar, wchar, disks: u64| {
        let disk = DiskIo { disk: (8, 0), read: disks, written: 0, reads: 9, writes: 9 };
        let usage = Usage { rchar, wchar, ..with_disk(usage(), disk) };
        let text = card(&figures(&usage));
        text.lines().find(|line| line.contains("files")).map(str::to_owned)
    };
    let shown = "  all files                              read 12.0 GiB, wrote 3.0 GiB with pipes";
    assert_eq!(row(Some(12 * GIB), Some(3 * GIB), GIB).as_deref(), Some(shown));
    assert_eq!(row(Some(12 * GIB), Some(3 * GIB), 8 * GIB), None, "most of it is in the row above");
    assert_eq!(row(Some(GIB / 2), Some(GIB / 4), 0), None, "little");
    assert_eq!([row(None, None, 0), row(None, Some(9 * GIB), 0)], [None, None], "not known");
}

#[test]
fn what_only_the_service_knows_is_on_the_card() {
    let usage = usage();
    let noted = "GPUs\t44\t0.88 of 2 GPUs on average\nenergy\t\t2.0 Wh\n\t\tGPU 1 did \x1b nothing.\nhalf\t9";
    let text = card(&Figures { noted, ..figures(&usage) });
    for line in [
        "  GPUs      #########...........   44 %  0.88 of 2 GPUs on average\n",
        "  energy                                 2.0 Wh\n",
        "  GPU 1 did ? nothing.\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert!(!text.contains("half"), "{text}");
    let several = card(&Figures { noted, nodes: Some(2), ..figures(&usage) });
    // What was lent is worth a card, however short the job was.
    let of_short =
        |noted| lines(UsageCard::Always, None, &Figures { noted, wall: Some(seconds(9)), ..figures(&usage) });
    assert_eq!(of_short("energy\t\t2.0 Wh").len(), 1);
    assert!(of_short("lent\t\tat most 2.0 GiB").iter().any(|line| line.contains("at most 2.0 GiB")));
    assert!(several.contains("  2.0 Wh on this node\n"), "{several}");
    // What was held and did nothing is waste, also of a short job, and of one that was cancelled for that.
    let of = |noted| {
        let cancelled = Some(Exit::Status(0));
        lines(
            UsageCard::Wasteful,
            None,
            &Figures { noted, exit: cancelled, wall: Some(seconds(30)), ..figures(&usage) },
        )
    };
    assert!(of("GPUs\t44\tx").is_empty() && of("\t\tIdle.").contains(&"  Idle.".to_owned()));
}

#[test]
fn a_job_that_used_what_it_had() {
    let usage = usage();
    assert_eq!(
        card(&figures(&usage)),
        "\
jobfence: job 1234 on n1 completed after 20 min 5 s
  CPU       ###################.   93 %  3.7 of 4 CPUs on average
  memory    #################...   83 %  peak 3.3 GiB of 4.0 GiB
  processes                              peak 9, threads counted
  disks                                  read 5.0 GiB, wrote 512.0 MiB
  Next time:
  --time=1560                  ran 20 min 5 s; 25 % reserve
"
    );
    let known = Figures {
        is_utf8: true,
        time_limit: Some(seconds(3600)),
        processes: Some(100),
        memory: Some(3 * GIB),
        memory_limit: Some(3 * GIB),
        ..figures(&usage)
    };
    // More than was granted: the scheduler's own limit may have some room.
    assert_eq!(
        card(&known),
        "\
jobfence: job 1234 on n1 completed after 20 min 5 s
  CPU       ███████████████████░   93 %  3.7 of 4 CPUs on average
  memory    ████████████████████  110 %  peak 3.3 GiB of 3.0 GiB
  processes ██░░░░░░░░░░░░░░░░░░    9 %  peak 9 of 100, threads counted
  disks                                  read 5.0 GiB, wrote 512.0 MiB
  time      ███████░░░░░░░░░░░░░   33 %  20 min 5 s of 1 h 0 min
  Next time:
  --time=1560                  ran 20 min 5 s; 25 % reserve
"
    );
}

#[test]
fn a_wasteful_job() {
    let usage = Usage { cpu: Some(seconds(1500)), memory_peak: Some(500 << 20), ..usage() };
    let wasteful = figures(&usage);
    assert_eq!(
        card(&wasteful),
        "\
jobfence: job 1234 on n1 completed after 20 min 5 s
  CPU       #######.............   31 %  1.2 of 4 CPUs on average
  memory    ###.................   12 %  peak 500.0 MiB of 4.0 GiB
  processes                              peak 9, threads counted
  disks                                  read 5.0 GiB, wrote 512.0 MiB
  Next time:
  --mem=640M                   peak was 500.0 MiB of 4.0 GiB; 25 % reserve
  --cpus=2                     1.2 of 4 CPUs were busy on average; slower if a
                               part used more
"
    );
    let of_tasks = Figures { tasks: Some(4), ..wasteful.clone() };
    assert!(
        card(&of_tasks).ends_with(
            "\
  Next time:
  --mem=640M                   peak was 500.0 MiB of 4.0 GiB; 25 % reserve
  2 CPUs in all                --tasks times --cpus: 1.2 of 4 CPUs were busy on
                               average; slower if a part used more
"
        ),
        "{}",
        card(&of_tasks)
    );
    // The need of other nodes is not known.
    let of_nodes = Figures { nodes: Some(4), ..wasteful.clone() };
    assert!(
        card(&of_nodes).ends_with(
            "\
  Not known here: the use of the 3 other nodes.
  Next time:
  --time=1560                  ran 20 min 5 s; 25 % reserve
"
        ),
        "{}",
        card(&of_nodes)
    );
    assert_eq!(of_nodes.advice().memory, None);
    // More memory may have been in swap.
    let swapped = Usage { swap_peak: None, ..usage.clone() };
    let swapped = Figures { usage: &swapped, is_without_swap: false, ..wasteful.clone() };
    assert_eq!(swapped.advice().memory, None);
    for when in [UsageCard::Wasteful, UsageCard::Always] {
        assert_eq!(lines(when, None, &Figures { is_array_task: true, ..wasteful.clone() }).len(), 9, "{when:?}");
    }
    assert!(
        lines(UsageCard::Failed, None, &wasteful).is_empty() && lines(UsageCard::Never, None, &wasteful).is_empty()
    );
    // Each threshold, and what is not the job's fault.
    let is_wasteful = |cpu, mib: u64, change: fn(&mut Figures<'_>)| {
        let usage = Usage { cpu: Some(seconds(cpu)), memory_peak: Some(mib << 20), ..usage.clone() };
        let mut figures = Figures { wall: Some(seconds(600)), ..figures(&usage) };
        change(&mut figures);
        figures.is_wasteful()
    };
    let plain: fn(&mut Figures<'_>) = |_| {};
    assert!(is_wasteful(1199, 4000, plain) && !is_wasteful(1200, 4000, plain));
    assert!(is_wasteful(2000, 2000, plain) && !is_wasteful(2000, 2048, plain));
    assert!(!is_wasteful(0, 0, |figures| figures.wall = Some(seconds(599))));
    assert!(!is_wasteful(0, 0, |figures| figures.exit = Some(Exit::Status(1))));
    assert!(!is_wasteful(0, 4000, |figures| figures.cpus = Some(Cpus::whole(1))));
    assert!(!is_wasteful(2400, 100, |figures| figures.memory_limit = Some(GIB)));
    let held = Usage { throttled_periods: Some(6000), throttled: Some(seconds(300)), ..usage.clone() };
    let held = Figures { usage: &held, memory_limit: None, memory: None, ..wasteful.clone() };
    assert!(!held.is_wasteful() && held.advice().cpus.is_none());
}

#[test]
fn a_job_that_was_killed_for_want_of_memory() {
    let usage = Usage {
        cpu: Some(seconds(4)),
        memory_peak: Some(4 * GIB),
        memory_max_events: Some(90),
        oom_kills: Some(1),
        ..usage()
    };
    let killed = Figures { exit: Some(Exit::Status(137)), wall: Some(seconds(5)), ..figures(&usage) };
    assert_eq!(
        lines(UsageCard::Failed, None, &killed).join("\n"),
        "\
jobfence: job 1234 on n1 was killed for lack of memory after 5 s
  CPU       ####................   20 %  0.80 of 4 CPUs on average
  memory    ####################  100 %  peak 4.0 GiB of 4.0 GiB
  processes                              peak 9, threads counted
  disks                                  read 5.0 GiB, wrote 512.0 MiB
  Next time:
  --mem=6G                     4.0 GiB was not enough; the need is not known"
    );
    // Killed at the limit of a task or of the node, not at the job's.
    let elsewhere = Usage { memory_peak: Some(GIB), ..usage.clone() };
    assert_eq!(Figures { usage: &elsewhere, ..killed.clone() }.advice(), Advice::default());
    // The job went on, and ended well.
    let survived = Figures { exit: Some(Exit::Status(0)), ..killed };
    let said = lines(UsageCard::Failed, None, &survived);
    assert_eq!(said[0], "jobfence: job 1234 on n1 lost 1 process for lack of memory, and ended with exit");
    assert_eq!((said[1].as_str(), said.len()), ("  status 0 after 5 s", 8));
    let sentences =
        ["A sentence\u{1b}[1m with what a user wrote \u{202e} in it, and that is long enough for a break.".to_owned()];
    let said = card(&Figures { sentences: &sentences, ..survived });
    assert!(
        said.contains("\n  A sentence?[1m with what a user wrote ? in it, and that is long enough for a\n  break.\n"),
        "{said}"
    );
    assert_eq!(said.matches("lack of memory").count(), 1, "{said}");
}

#[test]
fn what_killed_a_job_is_in_the_first_line() {
    let usage = usage();
    let title = |change: fn(&mut Figures<'_>)| {
        let mut figures = Figures { exit: Some(Exit::Signal(15)), ..figures(&usage) };
        figures.time_limit = Some(seconds(1200));
        change(&mut figures);
        let card = figures.card();
        let is_about_15 = card.iter().any(|line| line.contains("signal 15"));
        (card[0].clone(), is_about_15)
    };
    let at_its_limit = ("jobfence: job 1234 on n1 was ended at its time limit of 20 min 0 s".to_owned(), false);
    assert_eq!(title(|_| {}), at_its_limit);
    for exit in [Exit::Signal(9), Exit::Status(143), Exit::Status(137)] {
        let figures = Figures { exit: Some(exit), time_limit: Some(seconds(1200)), ..figures(&usage) };
        assert_eq!(figures.card()[0], at_its_limit.0, "{exit:?}");
    }
    // Cancelled before, or with another end.
    let cancelled = ("jobfence: job 1234 on n1 was ended by signal 15 after 20 min 5 s".to_owned(), true);
    assert_eq!(title(|figures| figures.time_limit = Some(seconds(1300))), cancelled);
    assert_eq!(title(|figures| figures.time_limit = None), cancelled);
    // Its limit was extended, or it was suspended.
    assert_eq!(title(|figures| figures.time_limit = Some(seconds(600))), cancelled);
    let failed = title(|figures| figures.exit = Some(Exit::Status(1)));
    assert_eq!(failed.0, "jobfence: job 1234 on n1 failed with exit status 1 after 20 min 5 s");
    // The kernel killed some of its processes, and that was its end, or not.
    let killed = |kills, exit| {
        let usage = Usage { oom_kills: Some(kills), ..usage.clone() };
        Figures { exit, time_limit: Some(seconds(1200)), wall: Some(seconds(1205)), ..figures(&usage) }
            .card()
            .join("\n")
    };
    let by_kernel = killed(3, Some(Exit::Signal(9)));
    let title = "jobfence: job 1234 on n1 was killed for lack of memory after 20 min 5 s\n";
    assert!(by_kernel.starts_with(title), "{by_kernel}");
    assert!(by_kernel.ends_with("\n  The kernel killed 3 processes for lack of memory."), "{by_kernel}");
    let at_limit = killed(1, Some(Exit::Signal(15)));
    let title = "jobfence: job 1234 on n1 lost 1 process for lack of memory, and was ended at its\n  time limit of 20 min 0 s\n";
    assert!(at_limit.starts_with(title), "{at_limit}");
    let went_on = killed(1, Some(Exit::Status(2)));
    let title = "jobfence: job 1234 on n1 lost 1 process for lack of memory, and ended with exit\n  status 2 after 20 min 5 s\n";
    assert!(went_on.starts_with(title) && went_on.matches("lack of memory").count() == 1, "{went_on}");
    assert!(
        killed(1, None).starts_with("jobfence: job 1234 on n1 lost 1 process for lack of memory, and ended after 20\n")
    );
}

#[test]
fn a_jobs_name_is_its_users_text() {
    let usage = usage();
    let title = |name| Figures { name: Some(name), ..figures(&usage) }.card()[0].clone();
    assert_eq!(title("solve it"), "jobfence: job 1234 (solve it) on n1 completed after 20 min 5 s");
    assert_eq!(title("\u{1b}[1m\u{e4}"), "jobfence: job 1234 (?[1m?) on n1 completed after 20 min 5 s");
    assert_eq!(title(" \t"), "jobfence: job 1234 (?) on n1 completed after 20 min 5 s");
    assert_eq!(title(""), title("  "));
    assert!(title(&"n".repeat(200)).contains(&format!(" ({}...) on n1 ", "n".repeat(24))));
}

#[test]
fn the_sites_text_is_the_last_line_of_a_card() {
    let usage = usage();
    let last = |text: &str, job: &str| {
        let figures = Figures { job, ..figures(&usage) };
        let lines = lines(UsageCard::Always, Some(text), &figures);
        let without = figures.card().len();
        lines.get(without..).unwrap().join("|")
    };
    let page = "https://hpc.example.org/jobs/";
    assert_eq!(last("Help: https://hpc.example.org/jobs/%j", "12_7"), format!("  Help: {page}12_7"));
    assert_eq!(last("%%j is 100 %% %j%j", "%j%%"), "  %j is 100 % %j%%%j%%");
    assert_eq!(last("%j", "\u{1b}[1m\u{e4}"), "  ?[1m?");
    // An address can be used only as a whole.
    let long = "a".repeat(90);
    assert_eq!(last(&format!("Read this: {long} %j"), "7"), format!("  Read this:|  {long}|  7"));
    let words = "w ".repeat(50);
    assert!(last(&words, "7").split('|').all(|line| line.len() <= WIDTH));
    let short = Figures { wall: Some(seconds(2)), ..figures(&usage) };
    assert_eq!(lines(UsageCard::Always, Some("text"), &short), [short.line()]);
}

#[test]
fn a_serial_program_is_advised_one_cpu() {
    // With the shell, and with a daemon that waits.
    for (cpus, busy) in [(2, 1180), (2, 1210), (2, 1260), (4, 1200), (4, 1262), (64, 1210)] {
        let used = Usage { cpu: Some(seconds(busy)), ..usage() };
        let serial = Figures { cpus: Some(Cpus::whole(cpus)), cpus_limit: Some(Cpus::whole(cpus)), ..figures(&used) };
        assert_eq!(serial.advice().cpus.map(|(cpus, _)| cpus), Some(1), "{busy} s, {cpus}");
    }
}

#[test]
fn a_job_that_was_held_back() {
    let usage = Usage {
        throttled_periods: Some(11_900),
        throttled: Some(seconds(3000)),
        memory_pressure_some: Some(seconds(400)),
        io_pressure_some: Some(seconds(30)),
        swap_peak: Some(GIB),
        forks_refused: Some(2),
        ..usage()
    };
    // Step daemons are part of the peak, but not of the limit.
    let text = card(&Figures { processes: Some(9), has_daemons: true, ..figures(&usage) });
    assert!(text.contains("  processes                              peak 9 with threads and step daemons\n"), "{text}");
    let held = Figures { exit: Some(Exit::Signal(15)), processes: Some(9), ..figures(&usage) };
    assert_eq!(
        card(&held),
        "\
jobfence: job 1234 on n1 was ended by signal 15 after 20 min 5 s
  CPU       ###################.   93 %  3.7 of 4 CPUs on average
  memory    #################...   83 %  peak 3.3 GiB of 4.0 GiB
  processes ####################  100 %  peak 9 of 9, threads counted
  disks                                  read 5.0 GiB, wrote 512.0 MiB
  2 processes or threads could not start because of the limit of 9 at once.
  A cancelled job is ended by signal 15.
  The CPU quota held the job back in 99 % of its periods. Start fewer threads,
  or ask for more CPUs.
  Its processes waited for memory in 33 % of the time.
  Up to 1.0 GiB was in swap.
"
    );
}

#[test]
fn a_job_that_filled_its_memory_with_page_cache() {
    let usage =
        Usage { memory_peak: Some(4 * GIB), memory_max_events: Some(90), memory_file: Some(3 * GIB), ..usage() };
    let rates = IoRates { rbps: Some(10 << 20), wiops: Some(1000), ..IoRates::default() };
    let disks = [DiskLimit { disk: Device { major: 8, minor: 0 }, rates }];
    assert_eq!(
        card(&Figures { disks: &disks, ..figures(&usage) }),
        "\
jobfence: job 1234 on n1 completed after 20 min 5 s
  CPU       ###################.   93 %  3.7 of 4 CPUs on average
  memory    ####################  100 %  peak 4.0 GiB of 4.0 GiB
  processes                              peak 9, threads counted
  disks     #########...........   42 %  read 5.0 GiB, wrote 512.0 MiB
  The memory limit was reached, and the kernel made room.
  At the end, 3.0 GiB was page cache, which the kernel takes back.
  Reading on disk 8:0 is limited to 10.0 MiB a second; 42 % of that was used on
  average.
  Next time:
  --time=1560                  ran 20 min 5 s; 25 % reserve
"
    );
}

#[test]
fn what_nobody_knows_has_no_row() {
    let usage = Usage::default();
    let unknown = Figures {
        node: None,
        exit: None,
        cpus: None,
        memory: None,
        memory_limit: None,
        nodes: None,
        tasks: None,
        ..figures(&usage)
    };
    assert_eq!(card(&unknown), "jobfence: job 1234 ended after 20 min 5 s\n");
    // cgroup v1: no peak of processes, and no disks.
    let of_v1 = Usage { processes_peak: None, read: None, disks: None, swap_peak: None, ..self::usage() };
    assert_eq!(
        card(&Figures { memory: None, memory_limit: None, ..figures(&of_v1) }),
        "\
jobfence: job 1234 on n1 completed after 20 min 5 s
  CPU       ###################.   93 %  3.7 of 4 CPUs on average
  memory                                 peak 3.3 GiB, not limited
  Next time:
  --time=1560                  ran 20 min 5 s; 25 % reserve
"
    );
    let idle = Usage { cpu: Some(Duration::ZERO), ..self::usage() };
    assert!(card(&figures(&idle)).contains("....................    0 %  0.00 of 4 CPUs on average\n"));
    assert_eq!(figures(&idle).advice().cpus.map(|(cpus, _)| cpus), Some(1));
}

#[test]
fn numbers_have_no_end() {
    let disk = DiskIo { disk: (8, 0), read: u64::MAX, written: u64::MAX, reads: 1, writes: 1 };
    let most = Usage {
        cpu: Some(Duration::MAX),
        memory_peak: Some(u64::MAX),
        oom_kills: Some(u64::MAX),
        processes_peak: Some(u64::MAX),
        ..with_disk(usage(), disk)
    };
    let most = Figures {
        wall: Some(Duration::MAX),
        memory: Some(u64::MAX),
        memory_limit: Some(u64::MAX),
        processes: Some(u64::MAX),
        ..figures(&most)
    };
    assert_eq!(
        card(&most),
        "\
jobfence: job 1234 on n1 lost 18446744073709551615 processes for lack of memory,
  and ended with exit status 0 after 213503982334601 d 7 h
  CPU       #####...............   25 %  1.0 of 4 CPUs on average
  memory    ####################  100 %  peak 16777215.9 TiB of 16777215.9 TiB
  processes ####################  100 %  peak 18446744073709551615 of
                                         18446744073709551615, threads counted
  disks                                  read 16777215.9 TiB, wrote 16777215.9
                                         TiB
"
    );
}

#[test]
fn short_jobs_and_tasks_of_arrays_have_one_line() {
    let used = Usage { cpu: Some(Duration::from_millis(1900)), ..usage() };
    let short = Figures { wall: Some(seconds(2)), ..figures(&used) };
    let line = "jobfence: job 1234: ok, 2 s, 23 % of 4 CPUs, memory 83 % of 4.0 GiB";
    assert_eq!(lines(UsageCard::Always, None, &short), [line]);
    assert!(lines(UsageCard::Wasteful, None, &short).is_empty() && lines(UsageCard::Failed, None, &short).is_empty());
    let failed = Figures { exit: Some(Exit::Status(1)), ..short };
    assert_eq!(lines(UsageCard::Failed, None, &failed), [line.replace("ok", "status 1")]);
    let long = usage();
    let task = Figures { job: "1234_7", is_array_task: true, ..figures(&long) };
    let line = "jobfence: job 1234_7: ok, 20 min 5 s, 93 % of 4 CPUs, memory 83 % of 4.0 GiB";
    assert_eq!(lines(UsageCard::Always, None, &task), [line]);
    let failed = Figures { exit: Some(Exit::Status(1)), ..task };
    assert!(lines(UsageCard::Failed, None, &failed).len() > 1);
    // What does not fit is omitted.
    let long = "x".repeat(1024);
    let unlimited = Figures { job: &long, usage: &used, memory: None, memory_limit: None, ..failed.clone() };
    let lines = lines(UsageCard::Always, None, &Figures { wall: Some(seconds(2)), ..unlimited });
    assert_eq!(lines, [format!("jobfence: job {}...: status 1, 2 s, 23 % of 4 CPUs", "x".repeat(24))]);
}

#[test]
fn a_quota_below_the_grant_is_what_a_job_could_use() {
    let used = |cpu, throttled| Usage { cpu: Some(seconds(cpu)), throttled_periods: Some(throttled), ..usage() };
    let held = Usage { throttled: Some(seconds(900)), ..used(1180, 11_000) };
    // CPUQuotaPercent=50 in a job of two.
    let half = Figures { cpus: Some(Cpus::whole(2)), cpus_limit: Some(Cpus::whole(1)), ..figures(&held) };
    let text = card(&half);
    for part in [
        "  CPU       ####################   97 %  0.97 of 1 CPU on average; 2 granted\n",
        "  The CPU quota held the job back in 91 % of its periods. This site lets it use\n  1 CPU of the 2 that it was \
         granted: start fewer threads.\n",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains("ask for more CPUs") && !half.is_wasteful(), "{text}");
    let short = Figures { wall: Some(seconds(2)), ..half };
    assert!(short.line().contains(" of 1 CPU, "), "{}", short.line());
    // It could use 4 of 8 CPUs and used one: a request of 2 gives that with this quota.
    let one = used(1205, 0);
    let quarter = Figures { cpus: Some(Cpus::whole(8)), cpus_limit: Some(Cpus::whole(4)), ..figures(&one) };
    assert_eq!(quarter.advice().cpus.map(|(cpus, _)| cpus), Some(2));
    // A quota above the grant does not change what to request.
    let more = Figures { cpus: Some(Cpus::whole(4)), cpus_limit: Some(Cpus::whole(8)), ..figures(&one) };
    assert!(card(&more).contains(" 25 %  1.0 of 4 CPUs on average\n"), "{}", card(&more));
}

#[test]
fn a_program_that_is_busy_on_whole_cpus_is_advised_so_many() {
    // In 20 minutes of 8 CPUs, including the shell and the daemon.
    for (cpu, advised) in [(900, 1), (1204, 1), (1211, 1), (1800, 2), (2400, 2), (3590, 3), (3700, 4)] {
        let used = Usage { cpu: Some(seconds(cpu)), ..usage() };
        let eight = Figures { cpus: Some(Cpus::whole(8)), cpus_limit: None, ..figures(&used) };
        assert_eq!(eight.advice().cpus.map(|(cpus, _)| cpus), Some(advised), "{cpu}");
    }
}

#[test]
fn what_no_disk_has_yet_and_what_daemons_used_is_said() {
    let disk = DiskIo { disk: (8, 0), ..DiskIo::default() };
    let usage = Usage { cpu: Some(seconds(1340)), memory_unwritten: Some(30 << 20), ..with_disk(usage(), disk) };
    let one = Figures { cpus: Some(Cpus::whole(1)), has_daemons: true, ..figures(&usage) };
    let text = card(&one);
    for part in [
        " read 0 B, wrote 0 B\n",
        "  At the end, 30.0 MiB was yet to be written: no disk had it, and it is not\n  counted as written.\n",
        "  111 %  1.1 of 1 CPU on average, step daemons\n",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn a_limit_below_the_grant_is_asked_for_by_the_grant() {
    let usage = Usage { memory_peak: Some(GIB), ..usage() };
    // AllowedRAMSpace=50: 4 GiB of the requested 8 GiB can be used.
    let half = Figures { memory: Some(8 * GIB), ..figures(&usage) };
    assert_eq!(half.advice().memory.map(|(bytes, _)| bytes), Some(5 * GIB / 2));
    let double = Figures { memory: Some(4 * GIB), memory_limit: Some(8 * GIB), ..figures(&usage) };
    assert_eq!(double.advice().memory.map(|(bytes, _)| bytes), Some(5 * GIB / 4));
}

prop_compose! {
    fn any_usage()(
        times in prop::collection::vec(prop::option::of(0_u64..100_000), 5),
        bytes in prop::collection::vec(prop::option::of(prop_oneof![0_u64..20 << 30, any::<u64>()]), 8),
        counts in prop::collection::vec(prop::option::of(prop_oneof![Just(0_u64), 0_u64..50_000, any::<u64>()]), 7),
    ) -> Usage {
        Usage {
            cpu: times[0].map(seconds),
            throttled: times[1].map(seconds),
            memory_pressure_some: times[2].map(seconds),
            io_pressure_some: times[3].map(seconds),
            periods: counts[0],
            throttled_periods: counts[1],
            memory_high_events: counts[2],
            memory_max_events: counts[3],
            oom_kills: counts[4],
            forks_refused: counts[5],
            processes_peak: counts[6],
            memory_peak: bytes[0],
            swap_peak: bytes[1],
            memory_file: bytes[2],
            ..bytes[3].zip(bytes[4]).map_or_else(Usage::default, |(read, written)| {
                Usage::from_disks(vec![DiskIo { disk: (8, 0), read, written, reads: read, writes: written }])
            })
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn every_card_can_be_read_and_believed(
        usage in any_usage(),
        texts in (".{0,40}", prop::option::of(".{0,40}"), prop::collection::vec(".{0,200}", 0..3)),
        exit in prop::option::of(prop_oneof![Just(Exit::Status(0)), (-5..300).prop_map(Exit::Status), (0..70).prop_map(Exit::Signal)]),
        times in (prop::option::of(0_u64..200_000), prop::option::of(0_u64..200_000)),
        granted in (
            prop::option::of(0_u64..200_000),
            prop::option::of(prop_oneof![0_u64..40 << 30, any::<u64>()]),
            prop::option::of(prop_oneof![0_u64..40 << 30, any::<u64>()]),
            prop::option::of(any::<u64>()),
            prop::option::of(1_u64..200_000),
        ),
        rates in prop::option::of((1_u64..1 << 40, 1_u64..1 << 20)),
        shape in (prop::option::of(0_u32..9), prop::option::of(0_u32..9)),
        yes in any::<[bool; 4]>(),
    ) {
        let disks: Vec<DiskLimit> = rates.into_iter().map(|(bytes, count)| DiskLimit {
            disk: Device { major: 8, minor: 0 },
            rates: IoRates { rbps: Some(bytes), wiops: Some(count), ..IoRates::default() },
        }).collect();
        let noted = texts.1.as_deref().map(|text| format!("GPUs\t44\t{text}\n\t\t{text}")).unwrap_or_default();
        let figures = Figures {
            job: &texts.0,
            name: texts.1.as_deref(),
            node: texts.1.as_deref(),
            is_array_task: yes[0],
            exit,
            wall: times.0.map(seconds),
            time_limit: times.1.map(seconds),
            cpus: granted.0.map(Cpus::from_thousandths),
            cpus_limit: granted.4.map(Cpus::from_thousandths),
            memory: granted.1,
            memory_limit: granted.2,
            is_without_swap: yes[1],
            processes: granted.3,
            has_daemons: yes[2],
            disks: &disks,
            usage: &usage,
            tasks: shape.0,
            nodes: shape.1,
            others: None,
                sentences: &texts.2,
            noted: &noted,
            is_utf8: yes[3],
            words: &WORDS,
        };
        for when in [UsageCard::Never, UsageCard::Failed, UsageCard::Wasteful, UsageCard::Always] {
            for line in lines(when, None, &figures) {
                prop_assert!(line.chars().count() <= WIDTH, "{line}");
                let is_fine = |c: char| c.is_ascii_graphic() || c == ' ' || yes[3] && "█░".contains(c);
                prop_assert!(line.chars().all(is_fine), "{line}");
            }
        }
        let (advice, granted_limit) = (figures.advice(), granted.4);
        if let Some((bytes, _)) = advice.memory {
            let peak = usage.memory_peak.unwrap_or(0);
            prop_assert!(bytes >= peak);
            // The limit that follows from it is above what was used, too.
            if let (Some(granted), Some(limit)) = (granted.1, granted.2) {
                let share = u128::from(limit.min(granted));
                prop_assert!(u128::from(bytes) * share >= u128::from(peak) * u128::from(granted));
            }
        }
        if let Some((cpus, _)) = advice.cpus {
            let (cpu, wall) = (usage.cpu.unwrap_or_default(), times.0.unwrap_or_default());
            // With the quota, the advised number gives what was used, except for a twentieth of a CPU.
            let all = u128::from(granted.0.unwrap_or(0));
            let most = all.min(granted_limit.map_or(all, u128::from));
            let given = (u128::from(cpus) * 1000 * most).div_ceil(all) + 50;
            prop_assert!(cpus >= 1 && given * u128::from(wall) >= u128::from(cpu.as_secs()) * 1000, "{cpus}");
            prop_assert!(u128::from(cpus) * 1000 < u128::from(granted.0.unwrap_or(0)));
        }
        if let Some((time, _)) = advice.time {
            prop_assert!(time >= seconds(times.0.unwrap_or(u64::MAX)));
        }
        let is_less = |(bytes, _): &(u64, String)| *bytes < granted.1.or(granted.2).unwrap_or(0);
        if exit != Some(Exit::Status(0)) || shape.1 != Some(1) {
            prop_assert!(advice.cpus.is_none() && !advice.memory.as_ref().is_some_and(is_less));
        }
    }
}
