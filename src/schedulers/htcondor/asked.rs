// SPDX-License-Identifier: GPL-2.0-or-later
//! The limits that a job requests for itself: attributes of its ad, which its user writes. They can only lower what the site allows.
//!
//! An attribute must be a number or a text. An expression is refused, because HTCondor would evaluate it anew for each reader.

use super::value::{short, text_of};
use crate::error::{Error, Result};
use crate::requests::{self, Request, Requests};

/// The attribute of a request, such as `JobfenceCpuLimit`.
pub fn attribute(request: &Request) -> String {
    let word = |word: &str| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_ascii_uppercase() + rest
    };
    format!("Jobfence{}", request.name.split('-').map(word).collect::<String>())
}

/// The requests of an ad. `find` returns the value of an attribute.
pub(super) fn requests_in<'a>(find: impl Fn(&str) -> Option<&'a str>) -> Result<Requests> {
    let mut asked = Requests::default();
    for request in requests::everywhere() {
        let name = attribute(request);
        let Some(value) = find(&name).filter(|value| !value.eq_ignore_ascii_case("undefined")) else { continue };
        let text = text_of(value).or_else(|| number_in(value)).ok_or_else(|| {
            Error::new(format!("{name} of the job's ad is neither a number nor a text in quotes:")).value(short(value))
        })?;
        request.read(&name, text.as_bytes(), &mut asked)?;
    }
    Ok(asked)
}

/// The shortest text of a number: HTCondor prints `0.5` and `5.000000000000000E-01`.
fn number_in(value: &str) -> Option<String> {
    let is_literal = value.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    let number = value.parse::<f64>().ok().filter(|_| is_literal)?;
    Some(number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Cpus;

    #[test]
    fn each_has_an_attribute_of_its_own() {
        let names: Vec<String> = requests::everywhere().map(attribute).collect();
        let expected = [
            "JobfenceCpuLimit",
            "JobfenceCpuBurst",
            "JobfenceMemHigh",
            "JobfencePidsMax",
            "JobfenceIoMax",
            "JobfenceUsageCard",
            "JobfenceSignalAt",
            "JobfenceElasticRam",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn numbers_and_texts_as_a_classad_has_them() {
        let asked = |text: &str| {
            let pairs = text.lines().filter_map(|line| line.split_once(" = "));
            requests_in(|name| {
                pairs.clone().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
            })
        };
        for half in ["0.5", "\"0.5\"", "5.000000000000000E-01", "5e-1"] {
            let found = asked(&format!("jobfencecpulimit = {half}\n")).unwrap();
            assert_eq!(found.cpu_limit, Some(Cpus::from_thousandths(500)), "{half}");
        }
        assert_eq!(asked("JobfencePidsMax = 60\nJobfenceCpuLimit = Undefined\n").unwrap().pids_max, Some(60));
        assert_eq!(asked("JobfenceMemHigh = \"2G\"\n").unwrap().mem_high, Some(2 << 30));
        let told = asked("JobfenceSignalAt = \"mem:90%:USR1,pids:90%\"\n").unwrap().signal_at;
        assert_eq!(told.flatten().map(|told| told.to_string()).as_deref(), Some("mem:90%:USR1,pids:90%"));
        assert!(asked("JobfenceSignalAt = \"mem:90%:KILL\"\n").is_err());
        assert_eq!(asked("CpuLimit = 7\n"), Ok(Requests::default()));
        for wrong in ["RequestCpus / 2", "error", "nan", "inf", "-1", "\"\"", "1e300", "true", "{1}", "\"1\" ?: 2", ""]
        {
            let error = asked(&format!("JobfenceCpuLimit = {wrong}\n")).unwrap_err().to_string();
            assert!(error.contains("JobfenceCpuLimit"), "{wrong}: {error}");
        }
    }
}
