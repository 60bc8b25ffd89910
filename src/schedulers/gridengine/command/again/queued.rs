// SPDX-License-Identifier: GPL-2.0-or-later
//! A job as `qstat -xml -j` prints it (`qstat_xml.c` of 8.1.9). In this form no text of a user's can look like a tag: qmaster's commands
//! write `&gt;` for `>`, and `%lt;` for `<`.

use std::collections::BTreeMap;

/// A job that qmaster knows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QmasterJob {
    /// Its user.
    pub owner: String,
    /// Whether its user has said that it may run again (`qsub -r y`).
    pub may_run_again: bool,
    /// Whether it has an advance reservation.
    pub is_reserved: bool,
    /// Whether its runs may have different numbers of slots (`-pe smp 2-8`).
    pub has_slot_range: bool,
    /// What it asks for with `-l`: the full name, the amount as text, and as a number.
    pub requests: Vec<(String, String, f64)>,
    /// Its context (`qsub -ac`).
    pub context: BTreeMap<String, String>,
    /// When its run began, in qmaster's seconds since 1970. `None`: it waits.
    pub began: Option<u64>,
}

/// What qmaster prints for a job that it does not know.
const UNKNOWN: &str = "<unknown_jobs";

/// The job. Inner `None`: qmaster does not know it. The error says what is not understood.
pub fn parse(text: &str) -> Result<Option<QmasterJob>, String> {
    if text.contains(UNKNOWN) {
        return Ok(None);
    }
    let missing = |name: &str| format!("qstat -xml -j prints no {name}");
    let value = |name: &str| inside(text, name).ok_or_else(|| missing(name));
    let requests = inside(text, "JB_hard_resource_list").unwrap_or_default();
    let request = |(name, rest): (&str, &str)| {
        let of = |name: &str| inside(rest, name).ok_or_else(|| missing(name));
        let amount = of("CE_doubleval")?.parse().map_err(|_| missing("number in CE_doubleval"))?;
        Ok((plain(name)?, plain(of("CE_stringval")?)?, amount))
    };
    let variable = |(name, rest): (&str, &str)| {
        Some((plain(name).ok()?, plain(inside(rest, "VA_value").unwrap_or_default()).ok()?))
    };
    let context = inside(text, "JB_context").unwrap_or_default();
    let slots = inside(text, "JB_pe_range").unwrap_or_default();
    let slots: Vec<_> = ["RN_min", "RN_max"].into_iter().flat_map(|name| elements(slots, name)).collect();
    let task = inside(text, "JB_ja_tasks").unwrap_or_default();
    let status = inside(task, "JAT_status").unwrap_or_default();
    // JIDLE of sge_job.h. A job that has not run yet has no task.
    let is_waiting = ["", "0"].contains(&status);
    let began = inside(task, "JAT_start_time").and_then(|time| time.parse::<u64>().ok());
    Ok(Some(QmasterJob {
        owner: plain(value("JB_owner")?)?,
        may_run_again: value("JB_restart")? == "1",
        is_reserved: inside(text, "JB_ar").is_some_and(|number| number != "0"),
        has_slot_range: slots.iter().any(|(count, _)| slots.first().is_some_and(|(first, _)| first != count)),
        requests: elements(requests, "CE_name").map(request).collect::<Result<_, String>>()?,
        context: elements(context, "VA_variable").filter_map(variable).collect(),
        began: if is_waiting { None } else { Some(began.ok_or_else(|| missing("JAT_start_time"))?) },
    }))
}

/// Whether this job is in a list of jobs, as `qstat -xml` prints it with any other options than `-j`.
pub fn has_job(text: &str, number: &str) -> bool {
    elements(text, "JB_job_number").any(|(found, _)| found == number)
}

/// What is in the first element of this name.
fn inside<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    elements(text, name).next().map(|(found, _)| found)
}

/// What is in each element of this name, and what stands between it and the next one. How a list's elements are called depends on the command
/// that has made the list, so each is found by what it begins with.
fn elements<'a>(text: &'a str, name: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let end = format!("</{name}>");
    let pieces: Vec<_> =
        text.split(&*format!("<{name}>")).skip(1).filter_map(|piece| piece.split_once(&*end)).collect();
    pieces.into_iter()
}

/// A text of which qstat has replaced characters. `<` is not told from `%lt;` in it.
fn plain(text: &str) -> Result<String, String> {
    if text.contains("%lt;") {
        return Err(format!("qstat prints {text:?}, which can mean two texts"));
    }
    let replaced = [("&gt;", ">"), ("&lt;", "<"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    Ok(replaced.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to)))
}

/// What `qalter -l` takes: all that the job asks for, with these amounts in the place of its own. qalter replaces the whole list.
pub fn with_amounts(requests: &[(String, String, f64)], amounts: &[(String, u64)]) -> String {
    let is_raised = |name: &String| amounts.iter().any(|(of, _)| of == name);
    let kept = requests.iter().filter(|(name, ..)| !is_raised(name)).map(|(name, text, _)| format!("{name}={text}"));
    let raised = amounts.iter().map(|(name, bytes)| format!("{name}={}", amount(*bytes)));
    kept.chain(raised).collect::<Vec<_>>().join(",")
}

/// An amount in bytes, in the largest unit of Grid Engine's that needs no fraction.
pub fn amount(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let unit = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A job that runs, as a real qstat has printed it, without what is not read.
    pub const RUNS: &str = "<?xml version='1.0'?>\n<detailed_job_info  xmlns:xsd=\"http://x\">\n  <djob_info>\n    <element>\n\
        <JB_job_number>1</JB_job_number>\n<JB_ar>0</JB_ar>\n<JB_owner>alice</JB_owner>\n<JB_job_name>a%lt;JB_ar&gt;b</JB_job_name>\n\
        <JB_hard_resource_list>\n<qstat_l_requests>\n<CE_name>h_vmem</CE_name>\n<CE_valtype>4</CE_valtype>\n\
        <CE_stringval>100M</CE_stringval>\n<CE_doubleval>104857600.000000</CE_doubleval>\n</qstat_l_requests>\n<qstat_l_requests>\n\
        <CE_name>arch</CE_name>\n<CE_stringval>lx*&amp;!x</CE_stringval>\n<CE_doubleval>0.000000</CE_doubleval>\n</qstat_l_requests>\n\
        </JB_hard_resource_list>\n<JB_soft_resource_list>\n<qstat_l_requests>\n<CE_name>hostname</CE_name>\n\
        <CE_stringval>node1</CE_stringval>\n<CE_doubleval>0.000000</CE_doubleval>\n</qstat_l_requests>\n</JB_soft_resource_list>\n\
        <JB_context>\n<context_list>\n<VA_variable>A</VA_variable>\n<VA_value>1</VA_value>\n</context_list>\n<context_list>\n\
        <VA_variable>B</VA_variable>\n<VA_value>%lt;/JB_context&gt;</VA_value>\n</context_list>\n</JB_context>\n\
        <JB_ja_tasks>\n<ulong_sublist>\n<JAT_status>128</JAT_status>\n<JAT_task_number>1</JAT_task_number>\n\
        <JAT_start_time>1796059098</JAT_start_time>\n</ulong_sublist>\n</JB_ja_tasks>\n<JB_restart>1</JB_restart>\n</element>\n\
        </djob_info>\n</detailed_job_info>\n";

    #[test]
    fn a_job_is_read_as_qstat_prints_it() {
        let job = parse(RUNS).unwrap().unwrap();
        let requests = vec![
            ("h_vmem".to_owned(), "100M".to_owned(), 104_857_600.0),
            ("arch".to_owned(), "lx*&!x".to_owned(), 0.0),
        ];
        let expected = QmasterJob {
            owner: "alice".to_owned(),
            may_run_again: true,
            is_reserved: false,
            has_slot_range: false,
            requests,
            // A text that can mean two is left out.
            context: BTreeMap::from([("A".to_owned(), "1".to_owned())]),
            began: Some(1_796_059_098),
        };
        assert_eq!(job, expected);
        // As qalter has made the lists.
        let changed = RUNS.replace("qstat_l_requests>", "element>").replace("context_list>", "element>");
        assert_eq!(parse(&changed).unwrap().unwrap(), expected);
        let with = |from: &str, to: &str| parse(&RUNS.replacen(from, to, 1)).unwrap().unwrap();
        assert_eq!(with("<JAT_status>128", "<JAT_status>0").began, None, "it waits");
        assert!(!with("<JB_restart>1", "<JB_restart>2").may_run_again, "-r n");
        assert!(!with("<JB_restart>1", "<JB_restart>0").may_run_again, "nothing is said");
        assert!(with("<JB_ar>0", "<JB_ar>7").is_reserved);
        let range = |text: &str| {
            with("<JB_restart>", &format!("<JB_pe>smp</JB_pe>\n<JB_pe_range>\n{text}</JB_pe_range>\n<JB_restart>"))
        };
        let of = |min, max| {
            format!("<ranges>\n<RN_min>{min}</RN_min>\n<RN_max>{max}</RN_max>\n<RN_step>1</RN_step>\n</ranges>\n")
        };
        assert!(!range(&of(2, 2)).has_slot_range, "-pe smp 2");
        assert!(range(&of(2, 8)).has_slot_range, "-pe smp 2-8");
        assert!(range(&[of(2, 2), of(4, 4)].concat()).has_slot_range, "-pe smp 2,4");
        let unknown = "<?xml version='1.0'?>\n<unknown_jobs >\n    <ST_name>1</ST_name>\n</unknown_jobs>\n";
        assert_eq!(parse(unknown), Ok(None));
        for (from, to) in [
            ("JB_owner>", "JB_other>"),
            ("JB_restart>", "JB_other>"),
            ("100M", "%lt;"),
            ("104857600.000000", "much"),
            ("<JAT_start_time>1796059098", "<JAT_start_time>"),
        ] {
            assert!(parse(&RUNS.replace(from, to)).is_err(), "{from}");
        }
        assert!(parse("").is_err());
    }

    #[test]
    fn a_job_is_found_in_a_list() {
        let list = "<?xml version='1.0'?>\n<job_info  xmlns:xsd=\"http://x\">\n  <queue_info>\n    <job_list state=\"running\">\n\
            <JB_job_number>17</JB_job_number>\n<JAT_prio>0.55500</JAT_prio>\n<JB_name>7</JB_name>\n</job_list>\n</queue_info>\n</job_info>\n";
        assert!(has_job(list, "17") && !has_job(list, "7") && !has_job("", "17"));
    }

    #[test]
    fn the_whole_list_is_written_anew() {
        let job = parse(RUNS).unwrap().unwrap();
        let amounts = |all: &[(&str, u64)]| {
            let all: Vec<_> = all.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect();
            with_amounts(&job.requests, &all)
        };
        assert_eq!(amounts(&[("h_vmem", 150 << 20)]), "arch=lx*&!x,h_vmem=150M");
        assert_eq!(amounts(&[("h_rss", 3 << 30)]), "h_vmem=100M,arch=lx*&!x,h_rss=3G");
        assert_eq!([1023, 3 << 10, 0, 1 << 30].map(amount), ["1023", "3K", "0", "1G"]);
    }
}
