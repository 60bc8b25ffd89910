// SPDX-License-Identifier: GPL-2.0-or-later
//! Docker's client by another name: who runs a link `docker` to this program within a job has a container in that job.
//!
//! Docker's daemon makes the container, and it is told where by `--cgroup-parent`. All else passes through to the real client. The program
//! has the rights of its user alone: who may ask Docker's daemon can have any right on the node, and needs no link to it. So what this
//! program refuses keeps users from mistakes, and is no barrier.

pub mod place;

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use jobfence::error::{Error, Result};
use jobfence::sys::program::AskedProgram;
use nix::unistd::{execv, gethostname};

use crate::syslog::SyslogOfDaemon;

/// The name under which this program is Docker's client.
const NAME: &str = "docker";
/// Where the real client is. PATH is ignored: it may be that of the user who started a scheduler's daemon.
const PLACES: [&str; 2] = ["/usr/bin/docker", "/usr/local/bin/docker"];
/// How long Docker's daemon may take to answer about itself or a container.
const PATIENCE: Duration = Duration::from_secs(60);
/// The variables by which Docker's client finds the daemon.
const CLIENTS: &[&str] = &["HOME", "DOCKER_", "SSH_"];
/// The cgroup driver with which Docker makes a container's cgroup also below a directory that is not systemd's.
const CGROUPFS: &str = "cgroupfs";
/// The driver of a daemon without root: its containers stay in its own cgroup.
const NO_DRIVER: &str = "none";
/// docker(1) accepts the same commands behind this word.
const LONG: &str = "container";
/// The options of docker(1) before its command whose value can be the next word.
const WITH_VALUE: [&str; 10] =
    ["-H", "--host", "-c", "--context", "--config", "-l", "--log-level", "--tlscacert", "--tlscert", "--tlskey"];
/// As docker(1) ends if it could not do what it was asked for.
const FAILED: u8 = 125;

/// Whether this program was started as Docker's client.
pub fn is_asked_for() -> bool {
    std::env::args_os().next().is_some_and(|word| Path::new(&word).file_name() == Some(OsStr::new(NAME)))
}

/// Runs as Docker's client.
pub fn docker() -> ExitCode {
    SyslogOfDaemon::begin();
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let done = real_docker().map_err(|error| error.to_string()).and_then(|docker| run(&docker, &words));
    let Err(why) = done;
    eprintln!("jobfence: {why}");
    ExitCode::from(FAILED)
}

/// Becomes the real client. The error is for the user.
fn run(docker: &Path, words: &[OsString]) -> Result<Infallible, String> {
    let options = options_in(words);
    let (before, rest) = words.split_at(options);
    let count_of = |commands: [&str; 2]| commands.iter().find_map(|command| words_of(rest, command));
    if let Some(count) = count_of(["start", "restart"]) {
        refuse_another_jobs(docker, before, rest.get(count..).unwrap_or_default()).map_err(|why| why.to_string())?;
    }
    let Some(count) = count_of(["run", "create"]) else { return become_docker(docker, words) };
    let refused = |why: Error| format!("this container cannot be in its job: {why}");
    match place::of_this_process().map_err(refused)? {
        None => {
            if words_of(rest, "create").is_some() {
                log::info!("a container is made outside of all fences");
            }
        }
        Some(_) if !has_cgroups(docker, before).map_err(refused)? => {}
        Some(parent) => {
            let words = below(&parent, words, options + count).map_err(refused)?;
            return become_docker(docker, &words);
        }
    }
    become_docker(docker, words)
}

/// The number of words before the command, which say where the daemon is.
fn options_in(words: &[OsString]) -> usize {
    let mut count = 0;
    while let Some(option) = words.get(count).filter(|word| word.as_bytes().starts_with(b"-")) {
        count += if WITH_VALUE.iter().any(|known| option == known) { 2 } else { 1 };
    }
    count.min(words.len())
}

/// The number of first words that name this command. `None`: they name another.
pub fn words_of(words: &[OsString], command: &str) -> Option<usize> {
    match words {
        [word, ..] if word == command => Some(1),
        [long, word, ..] if long == LONG && word == command => Some(2),
        _ => None,
    }
}

/// Refuses to start one of these containers again if it was another job's: it would run where that job was, and without limits if the job
/// has ended. Words that name no container do not matter.
fn refuse_another_jobs(docker: &Path, options: &[OsString], words: &[OsString]) -> Result<()> {
    let inspect = ["inspect", "--type=container", "--format={{.HostConfig.CgroupParent}}"].map(OsStr::new);
    for name in words.iter().filter(|word| !word.as_bytes().starts_with(b"-")) {
        let asked = options.iter().map(OsString::as_os_str).chain(inspect).chain([name.as_os_str()]);
        let Ok(parent) = ask(docker, &asked.collect::<Vec<_>>()) else { continue };
        if place::step_of(&parent).is_some() && place::of_this_process() != Ok(Some(parent)) {
            return Err(Error::new("this container is another job's, and cannot run here:")
                .value(name.display())
                .hint("make another by 'docker run'"));
        }
    }
    Ok(())
}

/// The same words, of which `command` end with the command, for a container below this directory.
fn below(parent: &str, words: &[OsString], command: usize) -> Result<Vec<OsString>> {
    let (said, behind) = words.split_at(command);
    check_words(behind)?;
    Ok([said, &[OsString::from(format!("--cgroup-parent={parent}"))], behind].concat())
}

/// Refuses words with which the container would leave the job. They may be the container's own, whose place among the words only docker(1)
/// knows.
fn check_words(words: &[OsString]) -> Result<()> {
    for (at, word) in words.iter().enumerate() {
        let text = word.to_string_lossy();
        let (name, value) = text.split_once('=').unwrap_or((&text, ""));
        let next = || words.get(at + 1).map(|next| next.to_string_lossy().into_owned()).unwrap_or_default();
        let value = if text.contains('=') { value.to_owned() } else { next() };
        match name {
            "--cgroup-parent" => {
                return Err(Error::new("its words name another cgroup:")
                    .value(value)
                    .hint("leave out --cgroup-parent"));
            }
            "--restart" if value != "no" => {
                return Err(Error::new("Docker would start it again when the job has ended (--restart)")
                    .hint("leave out --restart"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether the daemon that these options name is this host's, and makes cgroups. An error: it does not make them where it is told.
fn has_cgroups(docker: &Path, options: &[OsString]) -> Result<bool> {
    let info = ["info", "--format", "{{.CgroupDriver}} {{.Name}}"].map(OsStr::new);
    let said = ask(docker, &options.iter().map(OsString::as_os_str).chain(info).collect::<Vec<_>>())?;
    let (driver, host) = said.split_once(' ').unwrap_or((&said, ""));
    if driver == NO_DRIVER || gethostname().is_ok_and(|this| this != host) {
        return Ok(false);
    }
    check_driver(driver).map(|()| true)
}

/// Checks that Docker makes cgroups where it is told.
pub fn check_driver(driver: &str) -> Result<()> {
    if driver == CGROUPFS {
        return Ok(());
    }
    Err(Error::new("Docker's cgroup driver must be cgroupfs, and is").value(driver).hint(
        "write \"exec-opts\": [\"native.cgroupdriver=cgroupfs\"] into /etc/docker/daemon.json, and start Docker again",
    ))
}

/// The client's output, in one line.
pub fn ask(docker: &Path, words: &[&OsStr]) -> Result<String> {
    let failed =
        |why: String| Error::new(format!("{} {}: {why}", docker.display(), words.join(OsStr::new(" ")).display()));
    let line = |text: &str| text.trim().replace('\n', "; ");
    let asked = AskedProgram::new(docker, words, CLIENTS).ask(Instant::now() + PATIENCE);
    asked.map(|said| line(&said)).map_err(|silence| failed(line(&silence.to_string())))
}

/// The error is for the user.
pub fn become_docker(docker: &Path, words: &[OsString]) -> Result<Infallible, String> {
    let c_string = |bytes: &[u8]| CString::new(bytes).map_err(|_| "a NUL in a word".to_owned());
    let program = c_string(docker.as_os_str().as_bytes())?;
    let rest = words.iter().map(|word| c_string(word.as_bytes())).collect::<Result<Vec<_>, _>>()?;
    execv(&program, &[vec![program.clone()], rest].concat())
        .map_err(|errno| Error::os("run", docker, errno).to_string())
}

/// The real client: neither this program nor another installation of it.
pub fn real_docker() -> Result<PathBuf> {
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

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn only_the_first_words_say_what_is_done() {
        let number = |text: &str| words_of(&words(text), "create");
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
        for (text, count) in [
            ("run x", 0),
            ("--context far -H tcp://x --tls -D container create x", 6),
            ("--context=far run x", 1),
            ("--host", 1),
            ("-v", 1),
        ] {
            assert_eq!(options_in(&words(text)), count, "{text}");
        }
    }

    #[test]
    fn a_container_that_would_leave_its_job_is_refused() {
        let says = |text: &str| {
            let said = below("/p", &words(&format!("-D run {text}")), 2).map_err(|error| error.to_string())?;
            Ok::<_, String>(said.join(OsStr::new(" ")).into_string().unwrap())
        };
        for fine in ["-ti --rm x", "--restart no x", "--restart=no x", "x --cgroup"] {
            assert_eq!(says(fine), Ok(format!("-D run --cgroup-parent=/p {fine}")));
        }
        for (words, why) in [
            ("--cgroup-parent=/a x", "another cgroup"),
            ("-d --cgroup-parent /a x", "leave out --cgroup-parent"),
            ("--restart=always x", "start it again"),
            ("--restart on-failure:3 x", "start it again"),
            ("x --restart", "start it again"),
        ] {
            let said = says(words).unwrap_err();
            assert!(said.contains(why), "{words}: {said}");
        }
    }
}
