// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence top` draws, and what its keys do, on screens of many sizes.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use jobfence::fence::living::CurrentUse;
use jobfence::figures::LimitedTo;
use jobfence::job::Cpus;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier};

use super::draw::{Manner, draw};
use super::jobs::SortColumn;
use super::list::{TopList, Wish};
use super::node::NodeNow;
use crate::gpu::JobGpus;
use crate::living::LivingRow;

/// A screen with colours that shows only ASCII.
const PLAIN: Manner = Manner { has_colours: true, is_utf8: false };

fn row(job: &str, step: &str, user: &str, cpus: Option<f64>, memory: Option<u64>) -> LivingRow {
    let limits = LimitedTo { cpus: Some(Cpus::whole(4)), memory: Some(1000 << 20), ..LimitedTo::default() };
    LivingRow {
        name: format!("/{job}/{step}"),
        job: job.to_owned(),
        step: step.to_owned(),
        node: None,
        run: None,
        holder: None,
        uid: Some(1000),
        user: user.to_owned(),
        placement: "own",
        path: None,
        started: None,
        uptime: Some(Duration::from_secs(7322)),
        cpus_now: cpus,
        current: CurrentUse {
            memory: memory.map(|mib| mib << 20),
            processes: Some(3),
            limits,
            limits_of_job: limits,
            ..CurrentUse::default()
        },
        gpus: None,
        idle: None,
        network: None,
        lent: None,
        cache: None,
        partition: None,
        granted: limits,
    }
}

fn node() -> NodeNow {
    NodeNow {
        name: "node17".to_owned(),
        load: Some("38.21".to_owned()),
        memory_used: Some(201 << 30),
        memory: Some(503 << 30),
        cpus: Some(128),
    }
}

/// Forty jobs: some have many steps, some have GPUs, and little is known of some.
fn forty() -> Vec<LivingRow> {
    let mut rows = Vec::new();
    for number in 0..40_u32 {
        let user = ["alice", "bob", "c.longer-name-than-most"][number as usize % 3];
        let job =
            if number == 7 { "47[1-9].server.of.a.long.domain.org".to_owned() } else { (4700 + number).to_string() };
        let steps: u32 = if number % 10 == 3 { 24 } else { 1 };
        for step in 0..steps {
            let step = if step == 0 { "batch".to_owned() } else { (step - 1).to_string() };
            let cpus = (number % 8 != 5).then_some(f64::from(number) / 10.0 / f64::from(steps));
            let mut one =
                row(&job, &step, user, cpus, (number % 9 != 4).then_some(25 * u64::from(number) / u64::from(steps)));
            one.partition = (number % 4 != 0).then(|| "short".to_owned());
            if number % 6 == 1 {
                one.gpus = Some(JobGpus { granted: Some(1), ..JobGpus::default() });
                one.gpus.as_mut().unwrap().of("/dev/nvidia0").percent_now = Some(f64::from(number));
            }
            if number == 12 {
                (one.granted, one.current.limits) = (LimitedTo::default(), LimitedTo::default());
            }
            rows.push(one);
        }
    }
    rows
}

fn list(rows: Vec<LivingRow>) -> TopList {
    let mut list = TopList::new(SortColumn::Cpu);
    list.take(node(), rows, 0);
    list
}

fn cells(list: &mut TopList, width: u16, height: u16, manner: Manner) -> Buffer {
    let mut screen = Buffer::empty(Rect::new(0, 0, width, height));
    draw(list, &mut screen, manner, SystemTime::UNIX_EPOCH + Duration::from_secs(3661));
    screen
}

fn text_of(screen: &Buffer) -> Vec<String> {
    let width = usize::from(screen.area.width).max(1);
    let line = |cells: &[ratatui_core::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
    screen.content().chunks(width).map(|cells| line(cells).trim_end().to_owned()).collect()
}

fn drawn(list: &mut TopList, width: u16, height: u16) -> Vec<String> {
    text_of(&cells(list, width, height, PLAIN))
}

fn press(list: &mut TopList, code: KeyCode) -> Wish {
    list.key(&KeyEvent::new(code, KeyModifiers::NONE))
}

fn types(list: &mut TopList, text: &str) {
    text.chars().for_each(|letter| assert_eq!(press(list, KeyCode::Char(letter)), Wish::None, "{letter}"));
}

/// The texts of a line that stand in columns, or are parts of the head.
fn words(line: &str) -> BTreeSet<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn names_of_columns(list: &mut TopList, width: u16) -> String {
    let lines = drawn(list, width, 12);
    words_in_order(lines.iter().find(|line| line.starts_with("  JOB")).unwrap())
}

fn words_in_order(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_narrow_screen_has_fewer_columns() {
    let mut short = forty();
    short.retain(|row| row.job.len() < 9 && row.user.len() < 9);
    let mut list = list(short);
    let mut of = |width| names_of_columns(&mut list, width);
    assert_eq!(of(10), "JOB");
    assert_eq!(of(40), "JOB USER CPU% MEM%");
    assert_eq!(of(45), "JOB USER OF GRANT CPU% OF GRANT MEM%");
    assert_eq!(of(60), "JOB USER CPU OF GRANT CPU% OF GRANT MEM% GPU%");
    assert_eq!(of(80), "JOB USER STEPS UPTIME CPU OF GRANT CPU% MEM/MiB OF GRANT MEM% GPU%");
    let wide = "JOB USER PARTITION STEPS UPTIME CPU CPUS OF GRANT CPU% MEM/MiB MAX/MiB OF GRANT MEM% GPU% PROCS";
    assert_eq!(of(120), format!("{wide} PEAK/MiB WHERE"));
    assert_eq!(of(200), of(120));
    assert_eq!(of(119 - " PEAK/MiB".len() as u16), wide);
}

#[test]
fn nothing_is_cut_however_small_the_screen_is() {
    for is_unfolded in [false, true] {
        let mut list = list(forty());
        if is_unfolded {
            types(&mut list, "*");
        }
        let whole = drawn(&mut list, 400, 400);
        let all = |lines: &[String]| lines.iter().flat_map(|line| words(line)).collect::<BTreeSet<_>>();
        let known = all(&whole);
        for width in [1, 9, 20, 40, 60, 80, 120, 200] {
            for height in [0, 1, 2, 3, 4, 6, 8, 12, 24, 60] {
                let lines = drawn(&mut list, width, height);
                // If the screen has one line, that is the node's.
                let (foot, above) =
                    if height < 2 { ("", &lines[..]) } else { (&**lines.last().unwrap(), &lines[..lines.len() - 1]) };
                let cut: Vec<_> = all(above).difference(&known).cloned().collect();
                // A job's id alone may be wider than the screen.
                assert!(cut.is_empty() || width < 26, "{width}x{height}: {cut:?} in\n{}", lines.join("\n"));
                let is_range = |text: &str| text.is_empty() || text.ends_with(" of 40") && text.len() <= 14;
                assert!(is_range(foot.split("  ").next().unwrap()), "{foot}");
                assert!(above.iter().all(|line| !line.contains(" of 40")), "{lines:#?}");
            }
        }
    }
}

#[test]
fn the_first_line_tells_of_the_node_and_the_last_one_what_is_shown() {
    let mut list = list(forty());
    let lines = drawn(&mut list, 200, 24);
    assert_eq!(
        lines[0],
        "node17  load 38.21  memory 201.0 of 503.0 GiB  40 jobs  granted at least 156 of 128 CPUs  \
         granted at least 38.0 of 503.0 GiB  01:01:01 UTC"
    );
    assert!(lines[23].starts_with("1 to 21 of 40  by CPU  Enter show  "), "{lines:#?}");
    assert!(
        lines[23].ends_with("sort: c CPU, m memory, p processes, t time, j job, u user  r reverse  ? help  q quit")
    );
    let lines = drawn(&mut list, 40, 8);
    assert_eq!((&*lines[0], &*lines[7]), ("node17  40 jobs  01:01:01 UTC", "1 to 5 of 40  by CPU  ? help  q quit"));
    // The head takes more lines if the screen has many.
    let lines = drawn(&mut list, 60, 24);
    assert_eq!(
        lines[..3],
        [
            "node17  load 38.21  memory 201.0 of 503.0 GiB  40 jobs",
            "granted at least 156 of 128 CPUs",
            "granted at least 38.0 of 503.0 GiB  01:01:01 UTC"
        ]
    );
    list.take(NodeNow { name: "n".into(), ..NodeNow::default() }, Vec::new(), 2);
    let lines = drawn(&mut list, 200, 6);
    assert_eq!(
        lines[0],
        "n  load -  memory - of - GiB  0 jobs  not all can be seen  granted 0 of - CPUs  granted 0.0 of - GiB  01:01:01 UTC"
    );
    assert_eq!((&*lines[2], &lines[5][..9]), ("no job that you may see runs on this node", "0 of 0  b"));
}

/// The cells of the first line that begins with this, without bars.
fn line_of(list: &mut TopList, begin: &str) -> String {
    let lines = drawn(list, 200, 60);
    let is_bar = |word: &&str| word.len() == 10 && word.bytes().all(|byte| b"#.".contains(&byte));
    let line = lines.iter().find(|line| line.starts_with(begin)).unwrap_or_else(|| panic!("{begin}: {lines:#?}"));
    line.split_whitespace().filter(|word| !is_bar(word)).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_job_is_the_sum_of_its_steps_and_unknown_if_a_part_is() {
    let mut rows = vec![
        row("7", "batch", "eve", Some(0.5), Some(100)),
        row("7", "0", "eve", Some(2.5), Some(650)),
        row("8", "batch", "eve", None, Some(900)),
        row("8", "0", "eve", Some(1.0), None),
        row("9", "0", "eve", Some(1.0), Some(10)),
    ];
    (rows[4].granted, rows[4].current.limits) = (LimitedTo::default(), LimitedTo::default());
    let mut list = list(rows);
    assert_eq!(line_of(&mut list, "+ 7"), "+ 7 eve 2 2:02:02 3.00 4 75 750.0 1000.0 75 6 - own");
    assert_eq!(line_of(&mut list, "+ 8"), "+ 8 eve 2 2:02:02 - 4 - - 1000.0 - 6 - own");
    assert_eq!(line_of(&mut list, "+ 9"), "+ 9 eve 1 2:02:02 1.00 - - 10.0 - - 3 - own");
    assert!(!drawn(&mut list, 200, 9).iter().any(|line| line.starts_with("    ")));
    types(&mut list, " ");
    assert_eq!(line_of(&mut list, "    0"), "0 2:02:02 2.50 4 62 650.0 1000.0 65 3 - own");
    // The grant is the job's, however its steps share it.
    assert!(drawn(&mut list, 200, 9)[0].contains("granted at least 8 of 128 CPUs"));
}

#[test]
fn the_cursor_stays_with_its_job() {
    let mut list = list(forty());
    types(&mut list, "j");
    let chosen = |list: &mut TopList| {
        let screen = cells(list, 80, 12, PLAIN);
        let lines = text_of(&screen);
        let is_chosen = |at: &usize| screen[(0, *at as u16)].modifier.contains(Modifier::REVERSED);
        let all: Vec<usize> = (0..12).filter(is_chosen).collect();
        assert_eq!(all.len(), 1, "{lines:#?}");
        lines[all[0]].split_whitespace().take(2).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(chosen(&mut list), "+ 4700");
    for (code, expected) in [
        (KeyCode::Down, "+ 4701"),
        (KeyCode::PageDown, "+ 4710"),
        (KeyCode::End, "+ 4739"),
        (KeyCode::Down, "+ 4739"),
        (KeyCode::PageUp, "+ 4730"),
        (KeyCode::Up, "+ 4729"),
        (KeyCode::Home, "+ 4700"),
        (KeyCode::Up, "+ 4700"),
    ] {
        assert_eq!(press(&mut list, code), Wish::None);
        assert_eq!(chosen(&mut list), expected, "{code:?}");
    }
    press(&mut list, KeyCode::Down);
    // The next look brings another order. The cursor stays at its job, and the keys act on that job.
    let mut rows = forty();
    rows.reverse();
    list.take(node(), rows, 0);
    assert_eq!(chosen(&mut list), "+ 4701");
    assert!(matches!(press(&mut list, KeyCode::Enter), Wish::Show(job) if job.as_str() == "4701"));
    list.take(node(), forty().into_iter().filter(|row| row.job != "4701").collect(), 0);
    assert!(chosen(&mut list).starts_with("+ 47"), "it has ended");
    // A cursor in the first line stays there, whichever job is first.
    types(&mut list, "c");
    assert_eq!(chosen(&mut list), "+ 4739");
    types(&mut list, "r");
    assert_ne!(chosen(&mut list), "+ 4739");
}

#[test]
fn steps_are_folded() {
    let mut list = list(forty());
    types(&mut list, "j");
    let steps = |list: &mut TopList| drawn(list, 80, 300).iter().filter(|line| line.starts_with("    ")).count();
    for (code, count) in [
        (KeyCode::Char(' '), 1),
        (KeyCode::Char(' '), 0),
        (KeyCode::Right, 1),
        (KeyCode::Right, 1),
        (KeyCode::Down, 1),
        (KeyCode::Left, 0),
        (KeyCode::Char('*'), 132),
        (KeyCode::Char('*'), 0),
    ] {
        press(&mut list, code);
        assert_eq!(steps(&mut list), count, "{code:?}");
    }
    // Steps below the screen come into view. Only jobs are counted.
    press(&mut list, KeyCode::Home);
    drawn(&mut list, 80, 12);
    (0..3).for_each(|_| drop(press(&mut list, KeyCode::Down)));
    press(&mut list, KeyCode::Right);
    let lines = drawn(&mut list, 80, 12);
    assert!(lines[2].starts_with("- 4703") && lines[10].starts_with("    6 "), "{lines:#?}");
    assert!(lines[11].starts_with("4 to 4 of 40"), "{lines:#?}");
}

#[test]
fn a_filter_finds_jobs_users_and_partitions() {
    let mut list = list(forty());
    types(&mut list, "/SHORT");
    let foot = |list: &mut TopList| drawn(list, 100, 24).pop().unwrap();
    assert!(foot(&mut list).starts_with("/SHORT_  1 to 20 of 30  "), "{}", foot(&mut list));
    press(&mut list, KeyCode::Backspace);
    press(&mut list, KeyCode::Enter);
    assert!(foot(&mut list).starts_with("1 to 20 of 30  /SHOR  by CPU  "), "{}", foot(&mut list));
    // The filter is typed in, so keys have their own meaning again. Esc removes the filter, and q then ends the program.
    types(&mut list, "m");
    assert_eq!(list.sorted_by, SortColumn::Memory);
    assert_eq!(press(&mut list, KeyCode::Esc), Wish::None);
    assert!(foot(&mut list).starts_with("1 to 20 of 40  by memory"));
    types(&mut list, "/47[1");
    assert!(foot(&mut list).starts_with("/47[1_  1 to 1 of 1  "), "{}", foot(&mut list));
    types(&mut list, "q\u{1b}");
    let lines = drawn(&mut list, 100, 24);
    assert!(
        lines.iter().any(|line| line == "no job is found") && lines[23].starts_with("/47[1q?_  0 of 0"),
        "{lines:#?}"
    );
    assert_eq!(press(&mut list, KeyCode::Enter), Wish::None, "keeps it");
    assert_eq!(press(&mut list, KeyCode::Enter), Wish::None, "no job is at the cursor");
    assert_eq!([press(&mut list, KeyCode::Esc), press(&mut list, KeyCode::Esc)], [Wish::None, Wish::Quit]);
    types(&mut list, "/");
    types(&mut list, &"x".repeat(200));
    assert_eq!(list.filter.len(), 64);
    let control = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
    assert_eq!((list.key(&control('u')), &*list.filter), (Wish::None, ""));
    assert_eq!([list.key(&control('l')), list.key(&control('c'))], [Wish::Redraw, Wish::Quit]);
}

#[test]
fn help_and_jobs_take_the_place_of_the_list() {
    let mut list = list(forty());
    types(&mut list, "?");
    let lines = drawn(&mut list, 40, 8);
    assert_eq!((&*lines[0], &*lines[7]), ("Help", "1 to 6 of 24  PgUp, PgDn  q back"), "{lines:#?}");
    press(&mut list, KeyCode::PageDown);
    press(&mut list, KeyCode::Down);
    assert_eq!(drawn(&mut list, 40, 8)[7], "8 to 13 of 24  PgUp, PgDn  q back");
    press(&mut list, KeyCode::End);
    let lines = drawn(&mut list, 40, 8);
    assert_eq!((&*lines[6], &*lines[7]), ("that is not set.", "19 to 24 of 24  PgUp, PgDn  q back"));
    press(&mut list, KeyCode::Home);
    assert!(drawn(&mut list, 40, 8)[7].starts_with("1 to 6 "));
    // The key leads back to the list, and does not end the program.
    types(&mut list, "q");
    assert!(drawn(&mut list, 40, 8)[7].starts_with("1 to 5 of 40"));
    assert_eq!(press(&mut list, KeyCode::Char('q')), Wish::Quit);
}

#[test]
fn colours_say_nothing_that_numbers_do_not() {
    let mut list = list(vec![
        row("7", "0", "eve", Some(3.8), Some(100)),
        row("8", "0", "eve", Some(3.7), Some(900)),
        row("9", "0", "eve", Some(3.7), Some(899)),
    ]);
    types(&mut list, "j");
    let colours = |list: &mut TopList, manner: Manner| {
        let screen = cells(list, 120, 8, manner);
        let of_line = |y: u16| (0..120).map(|x| screen[(x, y)].fg).filter(|fg| *fg != Color::Reset).collect::<Vec<_>>();
        [2, 3, 4].map(|y| {
            let mut all = of_line(y);
            all.dedup();
            all
        })
    };
    assert_eq!(colours(&mut list, PLAIN), [vec![Color::Yellow], vec![Color::Red], vec![]]);
    let none = colours(&mut list, Manner { has_colours: false, ..PLAIN });
    assert_eq!(none, [vec![], vec![], vec![]]);
    let lines = text_of(&cells(&mut list, 120, 8, Manner { is_utf8: true, ..PLAIN }));
    assert!(lines[2].contains("██████████   95 ") && lines[2].contains("█░░░░░░░░░   10 "), "{lines:#?}");
    assert_eq!(drawn(&mut list, 120, 8).concat().replace(|c: char| c.is_ascii(), ""), "", "without UTF-8");
}

#[test]
fn names_of_users_are_no_commands_and_may_be_wide() {
    let mut rows = vec![
        row("7\u{1b}[2J\u{202e}", "\u{9b}0", "eve", Some(1.0), Some(1)),
        row("計算計算計算計算計算計算計算", "0", "eve", None, None),
    ];
    rows[0].partition = Some("a\nb\u{7}".to_owned());
    let mut list = list(rows);
    types(&mut list, "*");
    let lines = drawn(&mut list, 120, 12);
    assert!(lines[2].starts_with("- 7?[2J? "), "{lines:#?}");
    assert!(lines[2].contains(" a?b? ") && lines[3].starts_with("    ?0 "), "{lines:#?}");
    // Each cell begins where its column begins.
    let screen = cells(&mut list, 120, 12, PLAIN);
    let user = (0..120).find(|x| screen[(*x, 1)].symbol() == "U").unwrap();
    assert_eq!([2, 4].map(|y| screen[(user, y)].symbol().to_owned()), ["e", "e"], "{lines:#?}");
    assert!(lines[4].contains('~'), "{lines:#?}");
}
