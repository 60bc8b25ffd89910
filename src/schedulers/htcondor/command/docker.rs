// SPDX-License-Identifier: GPL-2.0-or-later
//! The entry point for HTCondor's Docker universe: the starter runs this program instead of `docker`, if `DOCKER` in its configuration
//! names a link `docker` to it.
//!
//! Docker's daemon makes the container, not the starter. So the container's processes are in the fence only if the daemon is told where: by
//! `--cgroup-parent`, which this program adds to `docker create`. All other commands to Docker pass through unchanged.
//!
//! HTCondor runs most of them as its own user, and some as root. This program needs no more rights than `docker` itself.

mod place;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use jobfence::doors::life;
use jobfence::error::{Error, Result};

use crate::command::fenced;
use crate::configured::Configured;
use crate::docker::{ask, become_docker, check_driver, real_docker, words_of};
use crate::syslog::SyslogOfDaemon;

/// Runs as Docker's client, if a starter in a fence asks.
pub fn of_starter() -> Option<ExitCode> {
    let parent = place::containers_place()?;
    SyslogOfDaemon::begin();
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let done = real_docker().map_err(|error| error.to_string()).and_then(|docker| run(&docker, &words, &parent));
    Some(done.unwrap_or_else(|why| {
        // HTCondor puts the job on hold and shows this text.
        eprintln!("jobfence: {why}");
        ExitCode::FAILURE
    }))
}

/// Runs the command. The error is for the job's user. HTCondor writes the command first, so later words, such as a job's arguments, do not
/// matter.
fn run(docker: &Path, words: &[OsString], parent: &str) -> Result<ExitCode, String> {
    let refused = |why: String| format!("this container cannot be fenced: {why}");
    if let Some(create) = words_of(words, "create") {
        let info = ["info", "--format", "{{.CgroupDriver}}"].map(OsStr::new);
        match ask(docker, &info).and_then(|driver| check_driver(&driver)) {
            Ok(()) => return create_in(docker, words, create, parent).map_err(|error| refused(error.to_string())),
            // The configuration may let the job run without a fence.
            Err(error) => fenced(life::of_unknown(Configured { config: None, overrides: Vec::new() }.load(), error))
                .map(drop)
                .map_err(refused)?,
        }
    } else if words_of(words, "run").is_some() {
        // 'docker run' would start the container before its cgroup could be checked. No starter of HTCondor uses it.
        return Err(refused("it is to be run at once ('docker run'), and not made first".to_owned()));
    }
    become_docker(docker, words).map(|never| match never {})
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
    let error = match ask(docker, &inspect) {
        Ok(found) if found == parent => return Ok(()),
        Ok(found) => Error::new("its image, or DOCKER_EXTRA_ARGUMENTS of HTCondor, names another cgroup:").value(found),
        Err(error) => error,
    };
    if let Err(left) = ask(docker, &["rm", "-f", "-v", container].map(OsStr::new)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_as_a_shell_has_it() {
        use std::os::unix::process::ExitStatusExt;
        for (raw, expected) in [(0, 0), (125 << 8, 125), (9, 137)] {
            assert_eq!(status_of(ExitStatus::from_raw(raw)), ExitCode::from(expected));
        }
    }
}
