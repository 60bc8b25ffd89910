// SPDX-License-Identifier: GPL-2.0-or-later
//! The entry point for HTCondor's Docker universe: the starter runs this program instead of `docker`, if `DOCKER` in its configuration
//! names a link `docker` to it.
//!
//! Docker's daemon makes the container, not the starter. So the container's processes are in the fence only if the daemon is told where: by
//! `--cgroup-parent`, which this program adds to `docker create`. All other commands to Docker pass through unchanged.
//!
//! HTCondor runs most of them as its own user, and some as root. This program needs no more rights than `docker` itself.

mod place;

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use jobfence::doors::life;
use jobfence::error::{Error, Result};
use jobfence::sys::program::AskedProgram;
use nix::unistd::execv;

use crate::command::fenced;
use crate::configured::Configured;
use crate::syslog::SyslogOfDaemon;

/// The name under which this program is Docker's client.
const NAME: &str = "docker";
/// Where the real client is. PATH is ignored: it may be that of the user who started HTCondor.
const PLACES: [&str; 2] = ["/usr/bin/docker", "/usr/local/bin/docker"];
/// How long Docker's daemon may take to answer about itself or a container. HTCondor itself waits for two minutes.
const PATIENCE: Duration = Duration::from_secs(60);
/// The variables by which Docker's client finds the daemon.
const CLIENTS: &[&str] = &["HOME", "DOCKER_"];
/// The cgroup driver with which Docker makes a container's cgroup also below a directory that is not systemd's.
const CGROUPFS: &str = "cgroupfs";
/// docker(1) accepts the same commands behind this word.
const LONG: &str = "container";

/// Whether this program was started as Docker's client.
pub fn is_asked_for() -> bool {
    std::env::args_os().next().is_some_and(|word| Path::new(&word).file_name() == Some(OsStr::new(NAME)))
}

/// Runs as Docker's client.
pub fn docker() -> ExitCode {
    SyslogOfDaemon::begin();
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match real_docker().map_err(|error| error.to_string()).and_then(|docker| run(&docker, &words)) {
        Ok(status) => status,
        Err(why) => {
            // HTCondor puts the job on hold and shows this text.
            eprintln!("jobfence: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command. The error is for the job's user.
fn run(docker: &Path, words: &[OsString]) -> Result<ExitCode, String> {
    let refused = |why: String| format!("this container cannot be fenced: {why}");
    if let (Some(create), Some(parent)) = (words_of(words, "create"), place::containers_place()) {
        match check_driver(docker) {
            Ok(()) => return create_in(docker, words, create, &parent).map_err(|error| refused(error.to_string())),
            // The configuration may let the job run without a fence.
            Err(error) => fenced(life::of_unknown(Configured { config: None, overrides: Vec::new() }.load(), error))
                .map(drop)
                .map_err(refused)?,
        }
    } else if words_of(words, "create").is_some() {
        log::info!("a container is made outside of all fences");
    } else if words_of(words, "run").is_some() && place::containers_place().is_some() {
        // 'docker run' would start the container before its cgroup could be checked. No starter of HTCondor uses it.
        return Err(refused("it is to be run at once ('docker run'), and not made first".to_owned()));
    }
    match become_docker(docker, words) {
        Ok(never) => match never {},
        Err(error) => Err(error.to_string()),
    }
}

/// The number of first words that name this command. `None`: they name another. HTCondor writes the command first, so later words, such as
/// a job's arguments, do not matter.
fn words_of(words: &[OsString], command: &str) -> Option<usize> {
    match words {
        [word, ..] if word == command => Some(1),
        [long, word, ..] if long == LONG && word == command => Some(2),
        _ => None,
    }
}

/// Checks that Docker makes cgroups where it is told.
fn check_driver(docker: &Path) -> Result<()> {
    let driver = ask(docker, &["info", "--format", "{{.CgroupDriver}}"].map(OsStr::new), PATIENCE)?;
    if driver == CGROUPFS {
        return Ok(());
    }
    Err(Error::new("Docker's cgroup driver must be cgroupfs, and is").value(driver).hint(
        "write \"exec-opts\": [\"native.cgroupdriver=cgroupfs\"] into /etc/docker/daemon.json, and start Docker again",
    ))
}

/// The client's output, in one line.
fn ask(docker: &Path, words: &[&OsStr], patience: Duration) -> Result<String> {
    let failed =
        |why: String| Error::new(format!("{} {}: {why}", docker.display(), words.join(OsStr::new(" ")).display()));
    let line = |text: &str| text.trim().replace('\n', "; ");
    let asked = AskedProgram::new(docker, words, CLIENTS).ask(Instant::now() + patience);
    asked.map(|said| line(&said)).map_err(|silence| failed(line(&silence.to_string())))
}

/// Makes the container inside the fence, or none. Words behind the added option could override it: HTCondor passes on the image's name as
/// the job's user wrote it, and of two equal options the last one counts. So the daemon is asked where the container will be.
fn create_in(docker: &Path, words: &[OsString], create: usize, parent: &str) -> Result<ExitCode> {
    let (said, rest) = words.split_at(create);
    let mut command = Command::new(docker);
    command.args(said).arg(format!("--cgroup-parent={parent}")).args(rest);
    let output = command.stdin(Stdio::inherit()).stdout(Stdio::piped()).stderr(Stdio::piped()).output();
    let output = output.map_err(|error| Error::new(format!("run {}: {error}", docker.display())))?;
    if output.status.success() {
        let text = String::from_utf8_lossy(&output.stdout);
        let container = text.lines().last().unwrap_or_default().trim();
        check_parent(docker, container, parent)?;
    }
    // Printed only now, so that an error of this program stands first: HTCondor shows just the beginning of the client's output, and
    // fetching an image prints many lines. A reader that is gone does not matter.
    let _ = std::io::stderr().write_all(&output.stderr);
    let _ = std::io::stdout().write_all(&output.stdout);
    Ok(status_of(output.status))
}

/// Checks the container's cgroup, and removes the container if its cgroup is another.
fn check_parent(docker: &Path, container: &str, parent: &str) -> Result<()> {
    if container.len() != 64 || !container.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(Error::new("Docker names no container that it has made, and says").value(container));
    }
    let inspect = ["inspect", "--format", "{{.HostConfig.CgroupParent}}", container].map(OsStr::new);
    let error = match ask(docker, &inspect, PATIENCE) {
        Ok(found) if found == parent => return Ok(()),
        Ok(found) => Error::new("its image, or DOCKER_EXTRA_ARGUMENTS of HTCondor, names another cgroup:").value(found),
        Err(error) => error,
    };
    if let Err(left) = ask(docker, &["rm", "-f", "-v", container].map(OsStr::new), PATIENCE) {
        log::warn!("a container that is not used was not removed: {left}");
    }
    Err(error)
}

/// The exit status as in a shell.
fn status_of(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    let number = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    ExitCode::from(u8::try_from(number).unwrap_or(1))
}

fn become_docker(docker: &Path, words: &[OsString]) -> Result<Infallible> {
    let c_string = |bytes: &[u8]| CString::new(bytes).map_err(|_| Error::new("a NUL in a word"));
    let program = c_string(docker.as_os_str().as_bytes())?;
    let rest = words.iter().map(|word| c_string(word.as_bytes())).collect::<Result<Vec<_>>>()?;
    execv(&program, &[vec![program.clone()], rest].concat()).map_err(|errno| Error::os("run", docker, errno))
}

/// The real client: neither this program nor another installation of it.
fn real_docker() -> Result<PathBuf> {
    let this = std::fs::canonicalize("/proc/self/exe").ok();
    let is_real = |path: &&Path| {
        let found = std::fs::canonicalize(path).ok();
        found.is_some_and(|found| found.is_file() && Some(&found) != this.as_ref() && !found.ends_with("jobfence"))
    };
    let found = PLACES.iter().map(Path::new).find(is_real).map(Path::to_path_buf);
    found.ok_or_else(|| {
        Error::new("there is no Docker at").value(PLACES.join(" nor ")).hint("make a link to it at one of these")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_words_say_what_is_done() {
        let number = |text: &str| words_of(&text.split(' ').map(OsString::from).collect::<Vec<_>>(), "create");
        assert_eq!(number("create --name x image"), Some(1));
        assert_eq!(number("container create --name x image"), Some(2));
        for other in [
            "start -a create",
            "exec -ti x create",
            "container prune -f create",
            "run --rm=true create",
            "-v",
            "rm create",
            "--create",
        ] {
            assert_eq!(number(other), None, "{other}");
        }
        assert_eq!(words_of(&[], "create"), None);
    }

    #[test]
    fn a_status_is_as_a_shell_has_it() {
        use std::os::unix::process::ExitStatusExt;
        for (raw, expected) in [(0, 0), (125 << 8, 125), (9, 137)] {
            assert_eq!(status_of(ExitStatus::from_raw(raw)), ExitCode::from(expected));
        }
    }
}
