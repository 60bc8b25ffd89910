// SPDX-License-Identifier: GPL-2.0-or-later
//! What the PAM configuration of this host says about sessions that pam_slurm_adopt lets in.

use std::fs;
use std::path::{Path, PathBuf};

/// What services are configured in.
pub const DIRECTORY: &str = "/etc/pam.d";

/// What to do, if pam_slurm_adopt lets sessions in and nothing puts them into a fence: the line `line` in which file.
pub fn missing(directory: &Path, line: &str) -> Option<String> {
    let mut adopting = None;
    for (file, text) in services(directory) {
        for words in statements(&text) {
            if calls_us(&words) {
                return None;
            }
            if adopting.is_none() && words.iter().any(|word| base_name(word).starts_with("pam_slurm_adopt")) {
                adopting = Some(file.clone());
            }
        }
    }
    let adopting = adopting?;
    // It may be a file that other services include, and those are no business of ours.
    let sshd = directory.join("sshd");
    let file = if sshd.is_file() { &sshd } else { &adopting };
    Some(format!(
        "ssh sessions are NOT fenced: {} has pam_slurm_adopt, and no line calls 'jobfence adopt'; \
         add after the line that brings pam_systemd in {}: {line}",
        adopting.display(),
        file.display()
    ))
}

/// The files that PAM reads, by name, and their texts; none where the directory cannot be read.
fn services(directory: &Path) -> Vec<(PathBuf, String)> {
    let left_over = |name: &str| {
        name.ends_with('~')
            || [".dpkg-", ".rpm", ".bak", ".orig", ".old", ".ucf-"].iter().any(|mark| name.contains(mark))
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries.filter(|entry| !left_over(&entry.file_name().to_string_lossy())).map(|entry| entry.path());
    let mut texts: Vec<_> = files.filter_map(|file| Some((file.clone(), fs::read_to_string(&file).ok()?))).collect();
    texts.sort();
    texts
}

/// The statements of a file as words: without comments, continued lines in one (pam.d(5)).
fn statements(text: &str) -> Vec<Vec<String>> {
    let joined = text.replace("\\\n", " ");
    let words = |line: &str| line.split('#').next().unwrap_or_default().split_whitespace().map(str::to_owned).collect();
    joined.lines().map(words).collect()
}

fn calls_us(words: &[String]) -> bool {
    let exec = words.iter().position(|word| matches!(base_name(word), "pam_exec.so" | "pam_exec"));
    let Some(command) = exec.and_then(|exec| words.get(exec..)) else { return false };
    command
        .windows(2)
        .any(|pair| matches!(pair, [program, word] if base_name(program) == "jobfence" && word == "adopt"))
}

fn base_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADOPT: &str = "account required pam_unix.so\n-account required pam_slurm_adopt.so\n";

    fn with(files: &[(&str, &str)]) -> Option<String> {
        let temp = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(temp.path().join(name), text).unwrap();
        }
        let said = missing(temp.path(), "THE LINE")?;
        Some(said.replace(&format!("{}/", temp.path().display()), ""))
    }

    #[test]
    fn says_which_line_goes_into_which_file() {
        let said = with(&[("sshd", ADOPT), ("su", "")]).unwrap();
        assert!(said.contains("sshd has pam_slurm_adopt"), "{said}");
        assert!(said.ends_with("add after the line that brings pam_systemd in sshd: THE LINE"), "{said}");
        let said = with(&[("system-auth", ADOPT), ("sshd", "account include system-auth\n")]).unwrap();
        assert!(said.contains("system-auth has") && said.contains("in sshd:"), "{said}");
        assert!(with(&[("ssh", "account [default=bad \\\n success=ok] /lib/pam_slurm_adopt.so x\n")]).is_some());
    }

    #[test]
    fn says_nothing_without_pam_slurm_adopt() {
        assert_eq!(missing(Path::new("/nonexistent"), ""), None);
        assert_eq!(with(&[("sshd", "account required pam_unix.so\n# account required pam_slurm_adopt.so\n")]), None);
        assert_eq!(with(&[("sshd.dpkg-old", ADOPT), ("sshd~", ADOPT)]), None);
    }

    #[test]
    fn says_nothing_where_the_line_is() {
        let line = "session required pam_exec.so quiet stdout /usr/sbin/jobfence adopt --config /x\n";
        assert_eq!(with(&[("sshd", &format!("{ADOPT}{line}"))]), None);
        assert_eq!(with(&[("common-account", ADOPT), ("sshd", line)]), None);
        for other in [format!("#{line}"), line.replace("adopt", "check"), line.replace("pam_exec.so", "pam_echo.so")] {
            assert!(with(&[("sshd", &format!("{ADOPT}{other}"))]).is_some(), "{other}");
        }
    }
}
