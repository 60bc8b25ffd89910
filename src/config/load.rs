// SPDX-License-Identifier: GPL-2.0-or-later
//! Loads the configuration: the arguments of the plugin, and the file that they name.

use std::fmt;
use std::path::{Path, PathBuf};

use super::error::{ConfigError, MAX_ERRORS};
use super::file::{self, MAX_FILE};
use super::keys::Config;
use super::layer::{Layer, Written};
use super::parser;
use super::resolve::Loaded;
use super::values::{Mode, OnErrors};

/// The file of a node that has none in Slurm's directory.
pub const OWN_FILE: &str = "/etc/jobfence/jobfence.conf";

/// The file that counts if no argument `config=PATH` names one: the first of these that exists.
pub const DEFAULT_FILES: [&str; 2] = ["/etc/slurm/jobfence.conf", OWN_FILE];

/// Those of [`DEFAULT_FILES`] that exist, so that the first is the one that counts.
pub fn default_files() -> Vec<PathBuf> {
    DEFAULT_FILES.iter().map(PathBuf::from).filter(|path| file::exists(path)).collect()
}

/// Why there is no configuration, and what the arguments alone say about such a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadError {
    /// The value of the arguments, if they give it once and correctly. Otherwise it is fail: a broken file cannot soften anything.
    pub on_error: OnErrors,
    /// The value of the arguments, if they give it once and correctly. Otherwise it is enforce.
    pub mode: Mode,
    errors: Vec<ConfigError>,
    of_arguments: bool,
    sound: Option<Box<Config>>,
}

impl LoadError {
    /// Whether any argument is wrong, and not only the file.
    pub fn are_of_arguments(&self) -> bool {
        self.of_arguments
    }

    /// What the keys say of every job that are given rightly, for a fence that is there already: where it is, and how it is ended. No limit is
    /// taken from here. `None` where the file is not read.
    pub fn sound(&self) -> Option<&Config> {
        self.sound.as_deref()
    }

    /// At least one and at most 20 errors, those of the arguments before those of the file.
    pub fn errors(&self) -> &[ConfigError] {
        &self.errors
    }
}

/// One error a line.
impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            write!(f, "{}{error}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for LoadError {}

/// Reads the arguments of the plugin, as Slurm has split them, and the file.
pub fn load(args: &[&[u8]]) -> Result<Loaded, LoadError> {
    load_named(args, &|number| format!("plugstack.conf argument {number}"))
}

/// As [`load`], for arguments with other names; `name` gets their numbers, counted from 1.
pub fn load_named(args: &[&[u8]], name: &dyn Fn(usize) -> String) -> Result<Loaded, LoadError> {
    let names: Vec<String> = (1..=args.len()).map(name).collect();
    load_or_default(args, &names, &DEFAULT_FILES.map(Path::new))
}

/// The configuration that a file of this text, called `source` in errors, would give to jobs that have none of its sections.
pub fn parse(source: &str, text: &[u8]) -> Result<Config, Vec<ConfigError>> {
    Ok(Loaded::new(None, written(source, text)?, Vec::new()).config)
}

pub(super) fn written(source: &str, text: &[u8]) -> Result<Written, Vec<ConfigError>> {
    match understood(source, text) {
        (written, errors) if errors.is_empty() => Ok(written),
        (_, errors) => Err(errors),
    }
}

/// What is right in it, and what is not.
fn understood(source: &str, text: &[u8]) -> (Written, Vec<ConfigError>) {
    if text.len() > MAX_FILE {
        return (Written::default(), too_large(source, text));
    }
    let mut layer = Layer::default();
    layer.read(parser::file(source, text));
    layer.refuse_modes();
    let errors = std::mem::take(&mut layer.errors);
    (layer.into_written(), errors)
}

/// The mistakes in the part that was read of a file that is too large, so that a line without an end is reported at its place.
fn too_large(source: &str, text: &[u8]) -> Vec<ConfigError> {
    let cut_line = text.split_inclusive(|&byte| byte == b'\n').next_back().filter(|line| !line.ends_with(b"\n"));
    let mut text = text.to_vec();
    // The missing end of a cut line is no mistake of its own.
    if let Some(cut) = cut_line.map(<[u8]>::len).filter(|cut| *cut <= parser::MAX_LINE) {
        text.truncate(text.len() - cut);
    }
    let mut layer = Layer::default();
    layer.read(parser::file(source, &text));
    let mut errors = layer.errors;
    errors.truncate(MAX_ERRORS - 1);
    errors.push(ConfigError::new(source, "a larger file", format!("at most {MAX_FILE} bytes")));
    errors
}

/// As [`load_named`], with `defaults` in place of [`DEFAULT_FILES`].
pub(super) fn load_or_default(args: &[&[u8]], names: &[String], defaults: &[&Path]) -> Result<Loaded, LoadError> {
    let mut arguments = Layer::default();
    for (text, name) in args.iter().zip(names) {
        arguments.read(parser::argument(name, text));
    }
    let named = arguments.file().map(|named| named.map(Path::new));
    let read = match &named {
        None => read_first(defaults, true),
        Some(named) => read_first(named.as_slice(), false),
    };
    let mut errors = std::mem::take(&mut arguments.errors);
    let of_arguments = !errors.is_empty();
    let Written { general: arguments, .. } = arguments.into_written();
    let mut sound = None;
    match read {
        Ok((file, written, of_file)) if errors.is_empty() && of_file.is_empty() => {
            return Ok(Loaded::new(file, written, arguments));
        }
        Ok((_, written, of_file)) => {
            errors.extend(of_file);
            sound = Some(Box::new(Loaded::new(None, written, arguments.clone()).config));
        }
        Err(error) => errors.push(error),
    }
    errors.truncate(MAX_ERRORS);
    let Config { on_error, mode, .. } = Loaded::new(None, Written::default(), arguments).config;
    Err(LoadError { on_error, mode, errors, of_arguments, sound })
}

/// A file's name, what it gives, and what is wrong with it.
type FileRead = (Option<PathBuf>, Written, Vec<ConfigError>);

/// Reads the first file that exists. One that exists and cannot be read is an error, whatever there is behind it.
fn read_first(files: &[&Path], may_be_missing: bool) -> Result<FileRead, ConfigError> {
    for path in files {
        if let Some(text) = file::read(path, may_be_missing)? {
            let (written, errors) = understood(&path.display().to_string(), &text);
            return Ok((Some(path.to_path_buf()), written, errors));
        }
    }
    Ok(FileRead::default())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::super::limits::Limit;
    use super::super::samples::load_file;
    use super::super::values::OnError;
    use super::*;

    #[test]
    fn arguments_override_the_file() {
        let loaded = load_file(&["Mode=off", "rundir=/run/a#b"], Some(("Mode=observe OnError=warn\n", 0o644))).unwrap();
        assert_eq!(loaded.config.mode, Mode::Off);
        assert_eq!(loaded.config.on_error, OnErrors::all(OnError::Warn));
        assert_eq!(loaded.config.run_dir, Path::new("/run/a#b"));
        assert!(loaded.file.is_some());
    }

    #[test]
    fn the_first_default_file_that_exists_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (slurms, own, named) = (dir.path().join("slurm/f"), dir.path().join("own/f"), dir.path().join("named"));
        let load = |args: &[&str]| {
            let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
            load_or_default(&args, &vec![String::new(); args.len()], &[&slurms, &own])
        };
        let file = || load(&[]).unwrap().file;
        assert_eq!(file(), None);
        fs::create_dir(dir.path().join("own")).unwrap();
        assert_eq!(file(), None);
        fs::write(&own, "MaxProcesses=2\n").unwrap();
        assert_eq!(file().as_deref(), Some(own.as_path()));
        // No directory, so no file.
        fs::write(dir.path().join("slurm"), "").unwrap();
        assert_eq!(file().as_deref(), Some(own.as_path()));
        fs::remove_file(dir.path().join("slurm")).unwrap();
        fs::create_dir(dir.path().join("slurm")).unwrap();
        assert_eq!(file().as_deref(), Some(own.as_path()));
        // What was meant to be a file is none that is missing: the other one does not hold in its place.
        std::os::unix::fs::symlink("gone", &slurms).unwrap();
        assert!(load(&[]).unwrap_err().to_string().contains("the symbolic link to gone"));
        fs::remove_file(&slurms).unwrap();
        fs::create_dir(&slurms).unwrap();
        assert!(load(&[]).unwrap_err().to_string().contains("slurm/f: found a directory"));
        fs::remove_dir(&slurms).unwrap();
        fs::write(&slurms, "MaxProcesses=many\n").unwrap();
        assert!(load(&[]).unwrap_err().to_string().contains("slurm/f:1:14: found \"many\""));
        // Nothing of the other file is read.
        fs::write(&slurms, "Mode=observe\n").unwrap();
        let loaded = load(&[]).unwrap();
        assert_eq!(
            (loaded.file.as_deref(), loaded.config.numbers.get(Limit::Processes)),
            (Some(slurms.as_path()), None)
        );
        // A file that is named must exist, and no other is read.
        let config = format!("config={}", named.display());
        assert!(load(&[&config]).unwrap_err().to_string().contains("named: found No such file or directory (ENOENT)"));
        fs::write(&named, "Mode=off\n").unwrap();
        let loaded = load(&[&config]).unwrap();
        assert_eq!((loaded.file, loaded.config.mode), (Some(named), Mode::Off));
    }

    #[test]
    fn mistakes_in_arguments_name_the_argument() {
        assert_eq!(
            load_file(&["Mode=on", "confg=/x", "config=x", "Config=/y", "RunDir"], Some(("Mode=no\n", 0o644)))
                .unwrap_err(),
            "plugstack.conf argument 1, column 6: found \"on\", expected Mode to be enforce, observe or off\n\
             plugstack.conf argument 2, column 1: found \"confg\", expected a key of jobfence.conf(5); \
             did you mean config?\n\
             plugstack.conf argument 3, column 8: found \"x\", expected config to be an absolute path without \"..\", \
             double quotes or control characters\n\
             plugstack.conf argument 4, column 1: found \"Config\", expected config only once; it is given in plugstack.conf argument 3 \
             already\n\
             plugstack.conf argument 5, column 7: found the end of the line, expected \"=\" and a value after the key"
        );
    }

    #[test]
    fn what_is_right_beside_a_mistake_says_where_fences_are() {
        let text = "RunDir=/run/x\nCgroupBase=a/b\nMaxProcesses=many\nCleanupTimeout=no\n[User=a]\nMode=observe\n";
        let sound = |mode| {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("f"), text).unwrap();
            fs::set_permissions(dir.path().join("f"), fs::Permissions::from_mode(mode)).unwrap();
            load_or_default(&[], &[], &[&dir.path().join("f")]).unwrap_err().sound().cloned()
        };
        let right = Config { run_dir: "/run/x".into(), cgroup_base: Some("a/b".into()), ..Config::default() };
        assert_eq!(sound(0o644), Some(right));
        // A file that others can write says nothing.
        assert_eq!(sound(0o666), None);
    }

    #[test]
    fn only_sound_arguments_decide_what_a_broken_file_does() {
        let decided = |args: &[&[u8]]| {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("f"), "Mode=off OnError=warn torn").unwrap();
            let names = vec![String::new(); args.len()];
            let errors = load_or_default(args, &names, &[&dir.path().join("f")]).unwrap_err();
            (errors.mode, errors.on_error.within(errors.mode).general())
        };
        assert_eq!(decided(&[]), (Mode::Enforce, OnError::Fail));
        assert_eq!(decided(&[b"OnError=warn", b"Mode=enforce", b"what"]), (Mode::Enforce, OnError::Warn));
        assert_eq!(decided(&[b"OnError=fail", b"Mode=observe"]), (Mode::Observe, OnError::Warn));
        assert_eq!(decided(&[b"OnError=warn", b"Mode=of", b"OnError=warn"]), (Mode::Enforce, OnError::Fail));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(text: Vec<u8>, args in prop::collection::vec(any::<Vec<u8>>(), 0..4)) {
            let _ = parse("f", &text);
            let args: Vec<_> = args.iter().map(Vec::as_slice).collect();
            let _ = load_or_default(&args, &vec![String::new(); args.len()], &[Path::new("/nonexistent")]);
        }

        #[test]
        fn nothing_that_looks_like_a_file_makes_it_panic(
            text in "((\\[[ ]?(User|Node|QOS|x)?=?[a-z\\[\\]0-9\",-]{0,9}\\]?\n)|(Mode|CPUQuotaPercent|MinRAMSpace|OnError|[ä\0])[ \t]?(=|)[ ]?([a-z,:]{0,9}|[0-9.]{0,22}[%KMGTmsib]{0,3}|\"[^\n]{0,5}\"?)[ #\r]?\n?){0,6}"
        ) {
            let refused = parse("f", text.as_bytes()).err();
            prop_assert!(refused.is_none_or(|errors| (1..=20).contains(&errors.len())));
        }
    }
}
