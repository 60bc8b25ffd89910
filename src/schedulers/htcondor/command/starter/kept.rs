// SPDX-License-Identifier: GPL-2.0-or-later
//! Answers that are kept from one job to the next: HTCondor's settings for the starter of a slot, and whether the startd must be asked by
//! condor_status(1). A program of HTCondor's takes longer to answer than all else that a job's start costs.
//!
//! A starter reads all of the configuration anew. So a kept answer counts only while each file and directory of the configuration is the
//! same. Settings can also be in the startd's environment, so the answer counts for this startd alone. If it depends on more than that, it
//! is not kept.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jobfence::job::Id;
use jobfence::record::make_directory;
use jobfence::schedulers::htcondor::KEPT;
use jobfence::schedulers::htcondor::settings::StarterSettings;
use jobfence::sys::dir::Dir;
use jobfence::sys::process::Owner;
use nix::unistd::{UnlinkatFlags, getppid, unlinkat};

/// The file that names the startd, if that has to be asked by condor_status(1).
const REFUSES: &str = "refuses";
/// The kernel's clock for files is behind the system's clock by this at most, and may give two changes within it the same time.
const GRAIN: Duration = Duration::from_secs(1);

/// The kept answers for one startd.
pub struct Kept {
    dir: Dir,
    startd: String,
}

impl Kept {
    /// The answers for the startd that has started this process. `None`: they cannot be kept, and each job asks anew.
    pub fn open(run_dir: &Path) -> Option<Self> {
        let startd = Dir::open("/proc").and_then(|proc| Owner::from_pid(&proc, getppid().as_raw())).ok()??;
        let dir = make_directory(run_dir, KEPT).ok()?;
        Some(Self { dir, startd: format!("{} {}", startd.pid, startd.start) })
    }

    /// Whether this startd has refused the query that jobfence sends without condor_status(1).
    pub fn refuses(&self) -> bool {
        self.dir.read(REFUSES).is_ok_and(|startd| startd == self.startd)
    }

    /// Notes that this startd has refused the query.
    pub fn note_refusal(&self) {
        let _ = self.dir.replace_file(REFUSES, self.startd.as_bytes());
    }

    /// The settings for the starter of this slot, if they are kept and still hold.
    pub fn settings(&self, slot: &Id, slot_type: Option<&str>) -> Option<StarterSettings> {
        let text = self.dir.read(&name(slot)).ok()?;
        let rest = text.strip_prefix(&self.beginning(slot_type))?;
        let stamps = || rest.lines().filter_map(|line| line.strip_prefix('\t')?.split_once('\t'));
        let is_same = |(path, found): (&str, &str)| stamp(Path::new(path)).is_some_and(|(now, _)| now == found);
        (stamps().count() > 0 && stamps().all(is_same)).then_some(())?;
        StarterSettings::parse(rest).ok()
    }

    /// Keeps the answer of condor_config_val(1). `asked`: when that program was started.
    pub fn keep(&self, slot: &Id, slot_type: Option<&str>, said: &str, asked: SystemTime) {
        let Some(sources) = StarterSettings::sources(said) else { return };
        let mut text = self.beginning(slot_type);
        let asked = asked.duration_since(UNIX_EPOCH).unwrap_or_default();
        for path in sources {
            let Some((found, changed)) = stamp(Path::new(path)) else { return };
            if hangs_on_more(Path::new(path)) {
                return;
            }
            // The file can have changed while it was read.
            if changed.saturating_add(GRAIN) >= asked {
                return;
            }
            text.push_str(&format!("\t{path}\t{found}\n"));
        }
        said.lines().filter(|line| !line.starts_with('\t')).for_each(|line| text.push_str(&format!("{line}\n")));
        let _ = self.dir.replace_file(&name(slot), text.as_bytes());
        // The configuration may have changed, and with it which clients the startd answers.
        let _ = unlinkat(&self.dir, REFUSES, UnlinkatFlags::NoRemoveDir);
    }

    fn beginning(&self, slot_type: Option<&str>) -> String {
        format!("{} {}\n", self.startd, slot_type.unwrap_or_default())
    }
}

fn name(slot: &Id) -> String {
    format!("settings.{}", slot.escaped())
}

/// Whether a file's settings depend on more than the files that condor_config_val(1) names: on chance, on the environment of one starter,
/// or on a file that does not exist yet. A file that cannot be read may depend on all of these.
fn hangs_on_more(path: &Path) -> bool {
    let is_one = |line: &str| {
        let line = line.trim_start().to_ascii_lowercase();
        !line.starts_with('#') && ["ifexist", "$env(", "$random_"].iter().any(|word| line.contains(word))
    };
    path.is_file() && std::fs::read(path).map_or(true, |text| String::from_utf8_lossy(&text).lines().any(is_one))
}

/// A text that is another for each other file or directory at this path, and after each change; and the time of the last change.
fn stamp(path: &Path) -> Option<(String, Duration)> {
    match std::fs::metadata(path) {
        Ok(found) => {
            let changed = Duration::new(found.ctime().try_into().ok()?, found.ctime_nsec().try_into().ok()?);
            Some((format!("{}.{}.{}.{changed:?}", found.dev(), found.ino(), found.size()), changed))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Some(("none".to_owned(), Duration::ZERO)),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_counts_while_nothing_has_changed() {
        let place = tempfile::tempdir().unwrap();
        let config = place.path().join("config");
        let missing = place.path().join("later");
        std::fs::create_dir(&config).unwrap();
        let file = config.join("condor_config");
        std::fs::write(&file, "x\n").unwrap();
        let answers = "UID_DOMAIN = x\nTRUST_UID_DOMAIN = \nTRUST_LOCAL_UID_DOMAIN = \nSTARTER_ALLOW_RUNAS_OWNER = \n\
                       SLOT_USER = \nNOBODY_SLOT_USER = \nCGROUP_MEMORY_LIMIT_POLICY = hard\nBASE_CGROUP = htcondor\n\
                       LOCAL_CONFIG_DIR = \nENABLE_PERSISTENT_CONFIG = \n";
        let said = format!("\t{}\n{answers}LOCAL_CONFIG_FILE = {}\n", file.display(), missing.display());
        let run = place.path().join("run");
        let slot = Id::new("slot1_1").unwrap();
        let later = || SystemTime::now() + GRAIN * 2;
        let kept = || Kept::open(&run).unwrap();
        let known = |slot_type: Option<&str>| kept().settings(&slot, slot_type).is_some();
        kept().keep(&slot, None, &said, SystemTime::now());
        assert!(!known(None), "what may have changed meanwhile");
        kept().keep(&slot, None, &said, later());
        assert_eq!(kept().settings(&slot, None), StarterSettings::parse(&said).ok());
        assert!(!known(Some("slot_type_1")) && kept().settings(&Id::new("slot1_2").unwrap(), None).is_none());
        std::fs::write(&file, "y\n").unwrap();
        assert!(!known(None), "another text");
        kept().keep(&slot, None, &said, later());
        assert!(known(None));
        std::fs::write(config.join("another"), "").unwrap();
        assert!(!known(None), "another file in a directory");
        kept().keep(&slot, None, &said, later());
        assert!(known(None));
        std::fs::write(&missing, "").unwrap();
        assert!(!known(None), "a file that was missing");
        for (text, is_kept) in [
            ("BASE_CGROUP = $(Y)\n # include ifexist : /x\n", true),
            ("include ifexist : /x\n", false),
            ("BASE_CGROUP = $ENV(SITE)\n", false),
            ("UID_DOMAIN = x\nBASE_CGROUP = $random_Choice(1,2)\n", false),
        ] {
            std::fs::write(&file, text).unwrap();
            kept().keep(&slot, None, &said, later());
            assert_eq!(known(None), is_kept, "{text}");
        }
        std::fs::write(&file, "z\n").unwrap();
        let other = Kept { startd: "1 1".to_owned(), ..kept() };
        other.keep(&slot, None, &said, later());
        assert!(!known(None) && other.settings(&slot, None).is_some(), "another startd's");
    }

    #[test]
    fn a_startd_that_refuses_is_not_asked_again() {
        let place = tempfile::tempdir().unwrap();
        let run = place.path().join("run");
        let kept = Kept::open(&run).unwrap();
        assert!(!kept.refuses());
        kept.note_refusal();
        assert!(Kept::open(&run).unwrap().refuses());
        // New settings end that.
        let said = "\t/etc/passwd\nLOCAL_CONFIG_DIR = \nLOCAL_CONFIG_FILE = \nENABLE_PERSISTENT_CONFIG = \n";
        kept.keep(&Id::new("slot1").unwrap(), None, said, SystemTime::now() + GRAIN * 2);
        assert!(!kept.refuses());
        kept.note_refusal();
        assert!(!Kept { startd: "1 1".to_owned(), ..kept }.refuses());
    }
}
