// SPDX-License-Identifier: GPL-2.0-or-later
//! Whether the servers of Lustre can count by the jobs of this host.
//!
//! A client counts for each mount, and never by job. With each request it sends the job's id that `jobid_var` tells it to find, and the
//! servers count by that: `job_stats` (Lustre's manual, "Lustre Jobstats"; lustre/obdclass/jobid.c).

use std::fs;
use std::path::Path;

use super::rows::Rows;
use crate::part::CheckedHost;
use crate::schedulers;
use crate::table::printable;

/// Where the client's settings are, of releases since 2.10 or so and of earlier ones.
const PLACES: [&str; 2] = ["/sys/fs/lustre", "/proc/fs/lustre"];

/// The row.
const ROW: &str = "lustre";

/// Says it, if this host is a client.
pub fn say(rows: &mut Rows, host: &CheckedHost<'_>) {
    let wanted: Vec<_> =
        schedulers::ALL.iter().filter_map(|part| Some((part.name(), part.job_variable(host)?))).collect();
    if let Some(place) = PLACES.into_iter().map(Path::new).find(|place| place.join("jobid_var").exists()) {
        look(rows, place, &wanted);
    }
}

/// `wanted`: the schedulers here, each with the variable that has the number of its jobs.
fn look(rows: &mut Rows, place: &Path, wanted: &[(&str, &str)]) {
    let read = |name: &str| fs::read_to_string(place.join(name)).map(|text| text.trim().to_owned());
    let variable = match read("jobid_var") {
        Ok(variable) => variable,
        Err(error) => {
            return rows.remark(ROW, format!("cannot read {}: {error}", place.join("jobid_var").display()));
        }
    };
    // Earlier releases have no such setting. Where it names %j, the id is made from it.
    let form = read("jobid_name").ok().filter(|form| form.contains("%j"));
    let id = form.as_ref().map_or_else(String::new, |form| format!(", as {}", printable(form)));
    if let Some((scheduler, _)) = wanted.iter().find(|(_, wanted)| *wanted == variable) {
        return rows.fact(
            ROW,
            format!("job_stats of its servers count by the job ids of {scheduler} (jobid_var={variable}{id})"),
        );
    }
    let how = match variable.as_str() {
        "disable" => "count nothing by job".to_owned(),
        "procname_uid" => "count by program and user, and not by job".to_owned(),
        "nodelocal" => "count by one name for all of this host (jobid_name)".to_owned(),
        "session" => "count by what each session has set, and not by the scheduler's jobs".to_owned(),
        other => format!("count by the variable {}", printable(other)),
    };
    let remedies: Vec<String> = wanted
        .iter()
        .map(|(scheduler, wanted)| {
            format!("'lctl set_param -P jobid_var={wanted}' on the MGS has them count by jobs of {scheduler}")
        })
        .collect();
    let said = format!("job_stats of its servers {how} (jobid_var={})", printable(&variable));
    if remedies.is_empty() {
        rows.fact(ROW, said);
    } else {
        rows.remark(ROW, format!("{said}; {}", remedies.join("; ")));
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::Form;
    use super::*;

    #[test]
    fn what_the_servers_count_by_is_said() {
        let said = |variable: &str, name: Option<&str>, wanted: &[(&str, &str)]| {
            let temp = tempfile::tempdir().unwrap();
            fs::write(temp.path().join("jobid_var"), format!("{variable}\n")).unwrap();
            if let Some(name) = name {
                fs::write(temp.path().join("jobid_name"), format!("{name}\n")).unwrap();
            }
            let mut rows = Rows::new(Form::Json);
            look(&mut rows, temp.path(), wanted);
            let row = rows.json()[0].clone();
            (row["kind"].as_str().unwrap().to_owned(), row["value"].as_str().unwrap().to_owned())
        };
        let one = [("A", "A_JOB_ID")];
        let (kind, value) = said("A_JOB_ID", Some("%e.%u"), &one);
        assert_eq!(
            (kind.as_str(), value.as_str()),
            ("fact", "job_stats of its servers count by the job ids of A (jobid_var=A_JOB_ID)")
        );
        assert!(said("A_JOB_ID", Some("%j:%H"), &one).1.ends_with("(jobid_var=A_JOB_ID, as %j:%H)"));
        let (kind, value) = said("disable", None, &one);
        assert_eq!(kind, "remark");
        assert!(
            value.contains("count nothing by job")
                && value.ends_with("'lctl set_param -P jobid_var=A_JOB_ID' on the MGS has them count by jobs of A"),
            "{value}"
        );
        for (variable, how) in [
            ("procname_uid", "program"),
            ("session", "session"),
            ("nodelocal", "one name"),
            ("OTHER", "the variable OTHER"),
        ] {
            let (kind, value) = said(variable, Some("%j"), &one);
            assert!(kind == "remark" && value.contains(how), "{value}");
        }
        // Without a scheduler with such a variable there is nothing to do.
        assert_eq!(said("disable", None, &[]).0, "fact");
        assert!(!said("a\u{1b}[2J", None, &one).1.contains('\u{1b}'));
    }
}
