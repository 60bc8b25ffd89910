// SPDX-License-Identifier: GPL-2.0-or-later
//! A load sensor of Grid Engine, by the protocol of sge_execd(8): it reports for each line on stdin, until `quit` or the end.

use std::io::{self, BufRead, Write};

use crate::command::Failure;

/// Reports as long as execd asks. `read` looks at the node anew for each report, and returns complexes with their values. If it fails, the
/// report is empty.
pub fn sense(
    host: &str,
    questions: impl BufRead,
    mut answers: impl Write,
    mut read: impl FnMut() -> Result<Vec<(&'static str, String)>, Failure>,
) -> io::Result<()> {
    let mut logged = String::new();
    // A line that is not UTF-8 is a question, too.
    for question in questions.split(b'\n') {
        if question?.trim_ascii() == b"quit" {
            break;
        }
        let values = match read() {
            Ok(values) => values,
            Err(error) => {
                // execd discards stderr (`sge_ls_start_ls` of `sge_load_sensor.c`), so this is logged, once for each new error.
                let why = error.to_string();
                if why != logged {
                    log::error!("nothing is reported of this host: {why}");
                    logged = why;
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_for_each_line_until_quit() {
        let mut said = Vec::new();
        let mut asked = 0;
        let read = || {
            asked += 1;
            if asked == 2 {
                Err("no".into())
            } else {
                Ok(vec![("jobfence_threads", "4".to_owned()), ("jobfence_free", "7".to_owned())])
            }
        };
        sense("n1", &b"\n\xff\nquit\n\n"[..], &mut said, read).unwrap();
        let expected = "begin\nn1:jobfence_threads:4\nn1:jobfence_free:7\nend\nbegin\nend\n";
        assert_eq!(String::from_utf8(said).unwrap(), expected);
    }
}
