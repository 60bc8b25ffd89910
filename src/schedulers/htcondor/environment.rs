// SPDX-License-Identifier: GPL-2.0-or-later
//! `STARTER_JOB_ENVIRONMENT` of HTCondor's configuration: the variables that a starter puts into the environment of each job.
//!
//! In a text in double quotes, blanks separate the variables. In any other text semicolons separate them, unless the text begins with
//! another delimiter, which then separates them (`Env::MergeFromV1AutoDelim`). If a variable is there twice, the later one counts.
//! Variables of the job's own ad override all of these (`Starter::GetJobEnv` and `Env::MergeFromV1RawOrV2Quoted`, the same in 23.9.6 and
//! 25.13.2).

use crate::error::{Error, Result};

/// The name of the setting.
pub const LINE: &str = "STARTER_JOB_ENVIRONMENT";

/// A value without quotes that begins with one of these separates its variables by it, not by semicolons.
const DELIMITERS: &str = "!#$%&*+,-/:<>?@^`|~\x1F";

/// The site's value with jobfence's variables behind the site's own.
pub fn with(site: &str, ours: &[(String, String)]) -> Result<String> {
    // HTCondor could misread any other value, so it is left out.
    let is_plain = |value: &str| value.chars().all(|c| c.is_ascii_alphanumeric() || "/._-:,@".contains(c));
    let ours: Vec<String> =
        ours.iter().filter(|(_, value)| is_plain(value)).map(|(name, value)| format!("{name}={value}")).collect();
    let site = site.trim();
    let not_understood = |why: &str| Error::new(format!("{LINE} of HTCondor's configuration {why}"));
    // The value was expanded once already, and HTCondor would expand it again.
    if site.contains('$') {
        return Err(not_understood("has a $ that stays there when its macros are expanded"));
    }
    if site.starts_with(|first| DELIMITERS.contains(first)) {
        return Err(not_understood("begins with another character than a semicolon that is to separate its variables"));
    }
    match site.strip_prefix('"').map(|rest| rest.strip_suffix('"')) {
        None if site.is_empty() => Ok(format!("\"{}\"", ours.join(" "))),
        None => Ok(format!("{site};{}", ours.join(";"))),
        Some(Some(inside)) => Ok(format!("\"{inside} {}\"", ours.join(" "))),
        Some(None) => Err(not_understood("begins with a quote and does not end with one")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sites_own_variables_stay_in_either_form() {
        let ours = [("A", "1"), ("B", "/x/uid_1/job_1.0"), ("C", "no good")];
        let ours = ours.map(|(name, value)| (name.to_owned(), value.to_owned()));
        for (site, expected) in [
            ("", "\"A=1 B=/x/uid_1/job_1.0\""),
            (" \"X='a b' Y=\"\"q\"\"\" ", "\"X='a b' Y=\"\"q\"\" A=1 B=/x/uid_1/job_1.0\""),
            ("X=a b;Y=2", "X=a b;Y=2;A=1;B=/x/uid_1/job_1.0"),
            (";X=1", ";X=1;A=1;B=/x/uid_1/job_1.0"),
        ] {
            assert_eq!(with(site, &ours).as_deref(), Ok(expected), "{site}");
        }
        for wrong in ["\"X=1", "\"", "\"X=$(Y)\"", "X=$$(Y)", "|X=1|Y=2", "\x1FX=1", "~X=a;b"] {
            with(wrong, &ours).unwrap_err();
        }
    }
}
