// SPDX-License-Identifier: GPL-2.0-or-later
//! A load sensor of Grid Engine, by the protocol of sge_execd(8): for each empty line on stdin a report, until `quit` or the end.

use std::io::{self, BufRead, Write};

use super::Grantable;
use crate::command::Failure;

/// Reports as long as execd asks. `read` looks at the node anew for each report; what it cannot see is reported as nothing.
pub fn sense(
    host: &str,
    questions: impl BufRead,
    mut answers: impl Write,
    mut read: impl FnMut() -> Result<Grantable, Failure>,
) -> io::Result<()> {
    for question in questions.lines() {
        if question?.trim() == "quit" {
            break;
        }
        let values = match read() {
            Ok(grantable) => values(&grantable),
            Err(error) => {
                // execd writes into its log what a sensor says so.
                let _ = writeln!(io::stderr(), "jobfence: {error}");
                Vec::new()
            }
        };
        writeln!(answers, "begin")?;
        for (name, value) in values {
            writeln!(answers, "{host}:{name}:{value}")?;
        }
        writeln!(answers, "end")?;
        answers.flush()?;
    }
    Ok(())
}

/// The complexes of jobfence(8), each with its value; memory in bytes.
fn values(grantable: &Grantable) -> Vec<(&'static str, String)> {
    let held = grantable.memory.fences.unwrap_or(0);
    let mut all = vec![
        ("jobfence_threads", grantable.cpus.count().to_string()),
        ("jobfence_mem", grantable.mem.to_string()),
        ("jobfence_vmem", grantable.vmem().to_string()),
        ("jobfence_free", grantable.mem.saturating_sub(held).to_string()),
    ];
    all.extend(pressure().map(|percent| ("jobfence_pressure", percent)));
    all
}

/// In which part of the last minute some process of the node waited for memory, in percent (psi.rst). `None`: this kernel does not say.
fn pressure() -> Option<String> {
    let text = std::fs::read_to_string("/proc/pressure/memory").ok()?;
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let value = some.split_whitespace().find_map(|word| word.strip_prefix("avg60="))?;
    value.parse::<f64>().is_ok().then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::tests::grantable;
    use super::*;

    #[test]
    fn a_report_for_each_line_until_quit() {
        let mut said = Vec::new();
        let mut asked = 0;
        let read = || {
            asked += 1;
            if asked == 2 { Err("no".into()) } else { Ok(grantable(1 << 30)) }
        };
        sense("n1", "\n\nquit\n\n".as_bytes(), &mut said, read).unwrap();
        let said = String::from_utf8(said).unwrap();
        let lines: Vec<&str> = said.lines().filter(|line| !line.contains("jobfence_pressure")).collect();
        let expected = [
            "begin",
            "n1:jobfence_threads:4",
            "n1:jobfence_mem:16106127360",
            "n1:jobfence_vmem:17179869184",
            "n1:jobfence_free:13958643712",
            "end",
            "begin",
            "end",
        ];
        assert_eq!(lines, expected);
    }
}
