// SPDX-License-Identifier: GPL-2.0-or-later
//! `STARTER_JOB_ENVIRONMENT` of HTCondor's configuration: what a starter puts into the environment of each job.
//!
//! A text in double quotes has its variables between blanks, and another one has semicolons between them, unless it begins with the character
//! that is to be there in their place (`Env::MergeFromV1AutoDelim`). Of two variables with one name the
//! later one counts. Those of the job's own ad count more than all of these (`Starter::GetJobEnv` and `Env::MergeFromV1RawOrV2Quoted`, the same
//! in 23.9.6 and 25.13.2).

use crate::error::{Error, Result};

/// The name of that line.
pub const LINE: &str = "STARTER_JOB_ENVIRONMENT";

/// By one of these at its beginning a line without quotes says what it has in the place of semicolons.
const DELIMITERS: &str = "!#$%&*+,-/:<>?@^`|~\x1F";

/// The value of the site's line with our variables behind the site's own.
pub fn with(site: &str, ours: &[(String, String)]) -> Result<String> {
    // A value that HTCondor could read otherwise than it was meant is none that we write.
    let is_plain = |value: &str| value.chars().all(|c| c.is_ascii_alphanumeric() || "/._-:,@".contains(c));
    let ours: Vec<String> =
        ours.iter().filter(|(_, value)| is_plain(value)).map(|(name, value)| format!("{name}={value}")).collect();
    let site = site.trim();
    let not_understood = |why: &str| Error::new(format!("{LINE} of HTCondor's configuration {why}"));
    // It was expanded once already, and would be again.
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
