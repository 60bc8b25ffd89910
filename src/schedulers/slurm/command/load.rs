// SPDX-License-Identifier: GPL-2.0-or-later
//! Loads the plugin as Slurm does: the file by its path, or searched for in Slurm's PluginDir and then by the dynamic loader.
//!
//! `_spank_plugin_find`, `plugin_peek` and `plugin_load_from_file` are the same in every release from 22.05 to 26.11
//! (src/common/plugstack.c or spank.c, plugin.c). It happens in a child process: whatever a file does when it is loaded affects only that.

use std::ffi::{CStr, c_char, c_long, c_void};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jobfence::schedulers::slurm::plugstack::PlugstackLine;
use jobfence::schedulers::slurm::spank::version::{self, RELEASES};
use jobfence::sys::child;
use jobfence::sys::dir::Dir;
use jobfence::sys::process;
use jobfence::sys::program::AskedProgram;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY, RTLD_LOCAL, Symbol};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};

/// The plugin loads this library only at a panic: src/sys/unwinder.rs.
const UNWINDER: &str = "libgcc_s.so.1";

/// The file that Slurm would load, or why it cannot. `plugin_dir` is from slurm.conf.
pub fn load(line: &PlugstackLine, plugin_dir: Option<&str>) -> Result<PathBuf, String> {
    let library = slurms_library();
    let cannot = |errno: nix::errno::Errno| format!("it cannot be tried: {}", errno.desc());
    let say = || match as_slurm(&line.plugin, plugin_dir, library.as_deref()) {
        Ok(file) => [b"+", file.as_os_str().as_bytes()].concat(),
        Err(why) => [b"-", why.as_bytes()].concat(),
    };
    let (child, reader) = child::ask(say).map_err(cannot)?;
    let mut answer = Vec::new();
    let _ = std::fs::File::from(reader).read_to_end(&mut answer);
    let ended = waitpid(child, None);
    match (answer.split_first(), ended) {
        (Some((b'+', file)), _) => Ok(PathBuf::from(std::ffi::OsStr::from_bytes(file))),
        (Some((_, why)), _) => Err(String::from_utf8_lossy(why).into_owned()),
        (None, Ok(WaitStatus::Signaled(_, signal, _))) => Err(format!("a process that loaded it died of {signal}")),
        (None, _) => Err("a process that loaded it ended at once".to_owned()),
    }
}

/// Runs in the child.
fn as_slurm(plugin: &str, plugin_dir: Option<&str>, library: Option<&Path>) -> Result<PathBuf, String> {
    // The check may be ended while a file of a dead server is opened here.
    let _ = set_pdeathsig(Signal::SIGKILL);
    // As in slurmstepd, where a loaded file finds Slurm's functions.
    // SAFETY: Slurm's own library, whose initialisers run in every program of Slurm's.
    let slurm = library.and_then(|library| unsafe { Library::open(Some(library), RTLD_LAZY | RTLD_GLOBAL) }.ok());
    let api = slurm.as_ref().and_then(api_version);
    if plugin.starts_with('/') {
        return peek(Path::new(plugin), api).map(|()| PathBuf::from(plugin));
    }
    let built_in = || slurm.as_ref().and_then(default_plugin_path);
    let plugin_dir = plugin_dir.map(str::to_owned).or_else(built_in);
    let mut tried = Vec::new();
    for dir in plugin_dir.iter().flat_map(|dirs| dirs.split(':')).filter(|dir| !dir.is_empty()) {
        let file = Path::new(dir).join(plugin);
        match peek(&file, api) {
            Ok(()) => return Ok(file),
            Err(why) if file.exists() => tried.push(why),
            Err(_) => tried.push(format!("there is no {}", file.display())),
        }
    }
    if plugin_dir.is_none() {
        tried.push("where Slurm's PluginDir is cannot be seen here".to_owned());
    }
    peek(Path::new(plugin), api).map(|()| PathBuf::from(plugin)).map_err(|why| {
        tried.push(why);
        format!("Slurm does not find it ({}); write the whole path of the file", tried.join("; "))
    })
}

/// Loads a file and checks it as Slurm's `_verify_syms` does.
fn peek(file: &Path, api: Option<c_long>) -> Result<(), String> {
    // SAFETY: this process is there for it, and ends without another word if it goes wrong.
    let loaded = unsafe { Library::open(Some(file), RTLD_LAZY | RTLD_LOCAL) };
    let loaded = loaded.map_err(|error| format!("cannot be loaded: {}", reason(&error)))?;
    // SAFETY: gcc's own library, which most programs load.
    unsafe { Library::open(Some(UNWINDER), RTLD_LAZY | RTLD_LOCAL) }
        .map_err(|error| format!("needs the library of gcc, which is not here: {}", reason(&error)))?;
    let text = |name: &[u8]| {
        // SAFETY: an array of characters that ends with a NUL, in every plugin of Slurm's.
        let found: Option<Symbol<*const c_char>> = unsafe { loaded.get(name) }.ok();
        // SAFETY: the same; the symbol's own address is that of the array.
        found.map(|symbol| unsafe { CStr::from_ptr(symbol.into_raw().cast()) }.to_string_lossy().into_owned())
    };
    let no_plugin = || format!("{} is no plugin of Slurm's", file.display());
    let name = text(b"plugin_name\0").ok_or_else(no_plugin)?;
    if text(b"plugin_type\0").as_deref() != Some("spank") || name != "jobfence" {
        return Err(format!("{} is another plugin, {name}", file.display()));
    }
    // SAFETY: a number of 32 bits in every plugin of Slurm's.
    let version: Symbol<*const u32> = unsafe { loaded.get(b"plugin_version\0") }.map_err(|_| no_plugin())?;
    // SAFETY: the same; the symbol's own address is that of the number.
    let version = unsafe { version.into_raw().cast::<u32>().read() };
    let Some(api) = api else { return Ok(()) };
    match version::release(api) {
        Some(release) if release & 0xffff00 == version & 0xffff00 => Ok(()),
        Some(release) => Err(format!(
            "it is for Slurm {}, and this is {}; install the release of jobfence that knows it",
            in_words(version),
            in_words(release)
        )),
        None => Err(format!(
            "this release of jobfence does not know the Slurm that is installed (its API is {}), which refuses it",
            api >> 16
        )),
    }
}

/// For which releases of Slurm this one is, as `22.05 to 26.11`.
pub fn releases() -> String {
    let mut all = RELEASES.iter().map(|(_, release)| in_words(*release));
    let first = all.next().unwrap_or_default();
    format!("{first} to {}", all.next_back().unwrap_or_default())
}

/// A plugin's version as `25.11`.
fn in_words(version: u32) -> String {
    format!("{:02}.{:02}", version >> 16 & 0xff, version >> 8 & 0xff)
}

/// The reason without the file's name, which the caller's line has.
fn reason(error: &libloading::Error) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string(), |source| source.to_string())
}

fn api_version(slurm: &Library) -> Option<c_long> {
    // SAFETY: slurm.h declares `long slurm_api_version(void)` in every release.
    let version: Symbol<extern "C" fn() -> c_long> = unsafe { slurm.get(b"slurm_api_version\0") }.ok()?;
    Some(version())
}

/// `char *default_plugin_path` of src/common/global_defaults.c.
fn default_plugin_path(slurm: &Library) -> Option<String> {
    // SAFETY: a pointer to a text in every release.
    let path: Symbol<*const c_void> = unsafe { slurm.get(b"default_plugin_path\0") }.ok()?;
    // SAFETY: the same; the symbol's own address is that of the pointer, which is never changed.
    let text = unsafe { path.into_raw().cast::<*const c_char>().read() };
    // SAFETY: the text ends with a NUL, and is never freed.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// The library with the functions of Slurm's programs, as the dynamic loader finds it for slurmd. `None`: no slurmd is found.
fn slurms_library() -> Option<PathBuf> {
    let slurmd = slurmd()?;
    // The loader prints what it would load, and starts nothing (ld.so(8)); a program without a loader prints its release.
    let program = AskedProgram::new(slurmd, &["-V"], &[]).with([("LD_TRACE_LOADED_OBJECTS", "1".to_owned())]);
    let said = program.ask(Instant::now() + Duration::from_secs(10)).ok()?;
    let path = said.lines().find_map(|line| line.trim().strip_prefix("libslurmfull.so => "))?;
    path.split(" (").next().map(PathBuf::from).filter(|file| file.is_file())
}

/// What the slurmd of this host says about its release. `None`: there is no slurmd.
pub fn release() -> Option<String> {
    let said = AskedProgram::new(slurmd()?, &["-V"], &[]).ask(Instant::now() + Duration::from_secs(10));
    said.ok().map(|said| said.trim().to_owned())
}

/// Whether this host has a slurmd.
pub fn is_installed() -> bool {
    slurmd().is_some()
}

/// Whether root's slurmd runs here.
pub fn runs(proc: &Dir) -> bool {
    running(proc).is_some()
}

fn running(proc: &Dir) -> Option<i32> {
    let is_slurmd = |pid| process::uid(proc, pid) == Some(0) && process::name(proc, pid).as_deref() == Some("slurmd");
    process::all(proc).ok()?.iter().map(|one| one.id.pid).find(|pid| is_slurmd(*pid))
}

/// The slurmd that runs, or else one at a usual place. It must be root's, since root starts it here.
fn slurmd() -> Option<PathBuf> {
    let is_roots = |file: &PathBuf| {
        std::fs::metadata(file).is_ok_and(|file| file.is_file() && file.uid() == 0 && file.mode() & 0o022 == 0)
    };
    let running = || {
        let slurmd = running(&Dir::open("/proc").ok()?)?;
        std::fs::read_link(format!("/proc/{slurmd}/exe")).ok().filter(is_roots)
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let known = ["/usr/sbin", "/usr/local/sbin", "/opt/slurm/sbin"].map(PathBuf::from);
    let installed = || std::env::split_paths(&path).chain(known).map(|dir| dir.join("slurmd")).find(is_roots);
    running().or_else(installed)
}
