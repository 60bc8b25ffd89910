// SPDX-License-Identifier: GPL-2.0-or-later
//! The line by which Slurm loads the plugin: where 'make install' put it, where Slurm reads it, and the change from one to the other.
//! Slurm's commands and step daemons read these files at any time, so each exists completely or not at all.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use jobfence::schedulers::slurm::conf;
use jobfence::schedulers::slurm::plugins::Slurm;
use jobfence::schedulers::slurm::plugstack::{self, PlugstackLookup};

use crate::command::Failure;
use crate::configured::Configured;

/// Relative to the command's prefix.
const TEMPLATE: &str = "share/jobfence/plugstack.conf";
/// The comment above an 'include' that jobfence wrote.
const OURS: &str = "# Written by 'jobfence enable'.";

/// The library of this command's installation: the file that the installed line loads, or else the one where 'make install' or a package
/// has put it.
pub fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    library_below(program.ancestors().nth(2).unwrap_or(Path::new("/usr")))
}

fn library_below(prefix: &Path) -> PathBuf {
    let of_a_package = format!("lib/{}-linux-gnu/jobfence", std::env::consts::ARCH);
    let usual = ["lib/slurm", &of_a_package, "lib64/jobfence"].map(|place| prefix.join(place).join("libjobfence.so"));
    let of_the_line = InstalledLine::installed(Some(&prefix.join(TEMPLATE))).plugin;
    let found = of_the_line.into_iter().chain(usual).find(|file| file.is_file());
    found.unwrap_or_else(|| PathBuf::from("/usr/lib/slurm/libjobfence.so"))
}

/// The line that 'make install' provided, and the paths that belong to it.
pub struct InstalledLine {
    /// The installed file. Slurm does not read it.
    pub template: PathBuf,
    /// The plugin that the line loads. `None`: the line is missing.
    pub plugin: Option<PathBuf>,
    /// The configuration that the line names.
    pub config: Option<PathBuf>,
    /// The file that Slurm reads.
    pub active: PathBuf,
    /// The administrator's version, after 'jobfence disable'. Slurm's `include plugstack.conf.d/*` must not match it.
    pub kept: PathBuf,
}

impl InstalledLine {
    /// The line of this command's installation, or of this file.
    pub fn installed(template: Option<&Path>) -> Self {
        let program = std::env::current_exe().unwrap_or_default();
        let sibling = || program.ancestors().nth(2).unwrap_or(Path::new("/usr")).join(TEMPLATE);
        let template = template.map_or_else(sibling, |file| std::path::absolute(file).unwrap_or(file.to_owned()));
        let text = fs::read_to_string(&template).unwrap_or_default();
        let mut words = words(&text).unwrap_or_default().into_iter();
        let plugin = words.next().map(PathBuf::from);
        let config = words.find_map(|word| config(&word));
        let slurms = conf::directory(config.as_deref());
        let active = slurms.join("plugstack.conf.d").join("jobfence.conf");
        let kept = slurms.join("jobfence.plugstack.disabled");
        Self { template, plugin, config, active, kept }
    }

    /// The file that 'enable' would activate: the administrator's version, or the installed one.
    pub fn candidate(&self) -> &Path {
        if self.kept.is_file() { &self.kept } else { &self.template }
    }

    /// Whether the active line is as installed.
    pub fn is_unchanged(&self) -> bool {
        matches!((fs::read(&self.template), fs::read(&self.active)), (Ok(installed), Ok(active)) if installed == active)
    }

    /// Activates the line; Slurm reads it if a plugstack.conf includes it. Returns whether the directory was made for it.
    pub fn activate(&self) -> Result<bool, Failure> {
        let candidate = self.candidate();
        let text = fs::read(candidate).map_err(at("read", candidate))?;
        let directory = self.directory();
        let is_new = !directory.exists();
        if is_new {
            fs::create_dir(directory).map_err(at("make the directory", directory))?;
            // Users' commands read it, too, so the umask must not matter.
            fs::set_permissions(directory, Permissions::from_mode(0o755))
                .map_err(at("change the mode of", directory))?;
        }
        put(&self.active, &text)?;
        if candidate == self.kept {
            fs::remove_file(&self.kept).map_err(at("remove", &self.kept))?;
        }
        Ok(is_new)
    }

    /// The directory of the active line.
    pub fn directory(&self) -> &Path {
        self.active.parent().unwrap_or(Path::new("/"))
    }

    /// Deactivates the line. If an administrator changed it, the file is kept, and its path returned.
    pub fn deactivate(&self) -> Result<Option<&Path>, Failure> {
        if !self.active.exists() {
            return Ok(None);
        }
        if self.is_unchanged() {
            fs::remove_file(&self.active).map_err(at("remove", &self.active))?;
            return Ok(None);
        }
        fs::rename(&self.active, &self.kept).map_err(at("rename", &self.active))?;
        Ok(Some(&self.kept))
    }

    /// The plugstack.conf line that includes it: with the whole path, which also works if the controller serves that file.
    pub fn include(&self) -> String {
        format!("include {}/*.conf", self.directory().display())
    }

    /// Adds this include to a plugstack.conf.
    pub fn add_include(&self, plugstack: &Path) -> Result<(), Failure> {
        put(plugstack, self.with_include(plugstack)?.as_bytes())
    }

    /// A plugstack.conf with this include.
    pub fn with_include(&self, plugstack: &Path) -> Result<String, Failure> {
        let mut text = read_if_there(plugstack)?;
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(format!("{text}{OURS}\n{}\n", self.include()))
    }

    /// Removes the include, unless it loads other plugins by now; also the file and directory that were made for it, if they are empty.
    pub fn remove_include(&self, plugstack: &Path) -> Result<(), Failure> {
        let text = read_if_there(plugstack)?;
        let ours = format!("{OURS}\n{}\n", self.include());
        let directory = self.directory();
        let used = fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some());
        if used || !text.contains(&ours) {
            return Ok(());
        }
        match text.replacen(&ours, "", 1) {
            // Slurm treats a missing file as an empty one.
            rest if rest.is_empty() => fs::remove_file(plugstack).map_err(at("remove", plugstack))?,
            rest => put(plugstack, rest.as_bytes())?,
        }
        let _ = fs::remove_dir(directory);
        Ok(())
    }
}

/// The plugin and its arguments on the plugin's line.
fn words(text: &str) -> Option<Vec<String>> {
    text.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let is_line = matches!(words.next(), Some("required" | "optional"));
        let rest: Vec<String> = words.map(str::to_owned).collect();
        rest.first().is_some_and(|path| is_line && path.ends_with("libjobfence.so")).then_some(rest)
    })
}

/// The file that an argument of the line names.
fn config(argument: &str) -> Option<PathBuf> {
    let (key, value) = argument.split_once('=')?;
    key.eq_ignore_ascii_case("config").then(|| value.into())
}

/// The line by which Slurm loads the plugin now.
pub fn found(slurm: &Slurm) -> Option<plugstack::PlugstackLine> {
    match plugstack::find(slurm.plugstack()) {
        PlugstackLookup::Line(line) => Some(line),
        PlugstackLookup::Nothing(_) | PlugstackLookup::Unseen(_) => None,
    }
}

/// The same as text for people. `None`: there is none.
pub fn loading(slurm: &Slurm) -> Option<String> {
    found(slurm).map(|line| line.to_string())
}

/// The configuration file that the line which loads the plugin now names.
pub fn active(slurm: &Slurm) -> Configured {
    of_arguments(&found(slurm).map(|line| line.arguments).unwrap_or_default()).file_alone()
}

/// The configuration that the line of this file gives the plugin.
pub fn configured(file: &Path) -> Configured {
    let words = words(&fs::read_to_string(file).unwrap_or_default()).unwrap_or_default();
    of_arguments(words.get(1..).unwrap_or_default())
}

fn of_arguments(arguments: &[String]) -> Configured {
    let file = arguments.iter().find_map(|argument| config(argument));
    let overrides = arguments.iter().filter(|argument| config(argument).is_none());
    Configured { config: file, overrides: overrides.map(Into::into).collect() }
}

/// Whether slurmd fetches this Slurm's files from the controller: then they must not be written here.
pub fn is_fetched(slurm: &Slurm) -> bool {
    let directory = slurm.file().parent().unwrap_or(Path::new("/"));
    let really = fs::canonicalize(directory).unwrap_or_default();
    directory == Path::new("/run/slurm/conf") || really.file_name().is_some_and(|name| name == "conf-cache")
}

fn read_if_there(file: &Path) -> Result<String, Failure> {
    match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => Ok(read.map_err(at("read", file))?),
    }
}

/// Replaces a file once the new one is complete and on disk; mode and owner stay.
fn put(file: &Path, text: &[u8]) -> Result<(), Failure> {
    // A link is the administrator's, and stays a link to the same file.
    let file = &fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    // A unique name that `include plugstack.conf.d/*` does not match.
    let name = format!(".{}.{}.new", file.file_name().unwrap_or_default().display(), std::process::id());
    let sibling = file.with_file_name(name);
    let write = || {
        let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&sibling)?;
        new.write_all(text)?;
        match fs::metadata(file) {
            Ok(before) => {
                fchown(&new, Some(before.uid()), Some(before.gid()))?;
                new.set_permissions(Permissions::from_mode(before.mode() & 0o7777))?;
            }
            Err(_) => new.set_permissions(Permissions::from_mode(0o644))?,
        }
        new.sync_all()?;
        fs::rename(&sibling, file)?;
        File::open(file.parent().unwrap_or(Path::new("/")))?.sync_all()
    };
    Ok(write().map_err(|error| {
        let _ = fs::remove_file(&sibling);
        at("write", file)(error)
    })?)
}

/// A failed operation on a file, as text.
fn at<'a>(operation: &'a str, file: &'a Path) -> impl Fn(io::Error) -> String + 'a {
    move |error| format!("{operation} {}: {error}", file.display())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn the_library_is_found_where_it_was_put() {
        let temp = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let file = temp.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, text).unwrap();
            file
        };
        assert_eq!(library_below(temp.path()), Path::new("/usr/lib/slurm/libjobfence.so"));
        let of_a_package = format!("lib/{}-linux-gnu/jobfence/libjobfence.so", std::env::consts::ARCH);
        for place in ["lib64/jobfence/libjobfence.so", &of_a_package, "lib/slurm/libjobfence.so"] {
            let file = put(place, "");
            assert_eq!(library_below(temp.path()), file);
        }
        let file = put("elsewhere/libjobfence.so", "");
        put(TEMPLATE, &format!("required {}\n", file.display()));
        assert_eq!(library_below(temp.path()), file);
    }

    #[test]
    fn a_file_is_whole_at_every_moment() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("jobfence.conf");
        let texts = ["a".repeat(100), "b".repeat(5000)];
        put(&file, texts[0].as_bytes()).unwrap();
        let enough = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !enough.load(Ordering::Relaxed) {
                    assert!(texts.contains(&fs::read_to_string(&file).unwrap()));
                }
            });
            for round in 0..200 {
                put(&file, texts[round % 2].as_bytes()).unwrap();
            }
            enough.store(true, Ordering::Relaxed);
        });
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o644);
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing_beside_it() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("jobfence.conf");
        fs::create_dir_all(file.join("full")).unwrap();
        let failed = put(&file, b"x").unwrap_err().to_string();
        assert!(failed.starts_with(&format!("write {}: ", file.display())), "{failed}");
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_line_among_others_and_what_it_gives() {
        let text = "# required x/libjobfence.so\noptional other.so\n required\t/x/libjobfence.so Config=/y/j.conf Mode=off # so\n";
        let found = words(text).unwrap();
        assert_eq!(found, ["/x/libjobfence.so", "Config=/y/j.conf", "Mode=off"]);
        let configured = of_arguments(&found[1..]);
        assert_eq!(configured.config, Some("/y/j.conf".into()));
        assert_eq!(configured.overrides, ["Mode=off"]);
        assert_eq!(words("include plugstack.conf.d/*\n"), None);
    }
}
