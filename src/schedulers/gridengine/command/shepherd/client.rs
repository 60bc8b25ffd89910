// SPDX-License-Identifier: GPL-2.0-or-later
//! Has the client of an interactive job print why the job was not started.

use std::ffi::{CString, OsStr};
use std::io::Write as _;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use jobfence::error::{Error, Result};
use jobfence::schedulers::gridengine::client::{self, Client};
use jobfence::schedulers::gridengine::spool::{CONFIG, ENVIRONMENT};
use nix::unistd::Pid;

use super::process::{self, ShepherdEvent, ShepherdProcess};
use super::spool::{EXIT_STATUS, Spool};

/// How long to wait for a client that is called without the shepherd.
const PATIENCE: Duration = Duration::from_secs(5);

/// Has the client print the sentence. Returns whether the job is over with that. A job that has begun is left alone, and a batch job has no
/// client. A slave task is never over: qmaster would end the whole job for that (`job_report_qmaster.c`), but the job is to decide.
pub fn tell(spool: &Spool, program: &CString, name: &OsStr, sentence: &str) -> Result<bool> {
    let config = spool.dir.read(CONFIG)?;
    let directory = spool.dir.path().file_name().and_then(OsStr::to_str).unwrap_or_default();
    Ok(is_told(spool, &config, program, name, sentence)? && !client::is_slave_task(&config, directory))
}

fn is_told(spool: &Spool, config: &str, program: &CString, name: &OsStr, sentence: &str) -> Result<bool> {
    if spool.dir.read_if_there(process::PID)?.is_some_and(|pid| !pid.is_empty()) {
        return Ok(false);
    }
    match client::client(config) {
        None => Ok(false),
        Some(Client::Socket(address)) => write_to(&address, &client::line(sentence)).map(|()| true),
        Some(Client::Builtin) => {
            let administrator = spool.administrator()?;
            let Some(instead) = client::config(config, &administrator, &spool.dir.path().to_string_lossy()) else {
                return Ok(false);
            };
            let ours = client::environment(|name| std::env::var(name).ok(), sentence);
            spool.write(CONFIG, instead.as_bytes())?;
            let answer = spool.write(ENVIRONMENT, &ours).and_then(|()| by_shepherd(spool, program, name));
            // execd reads the job's owner from this file.
            spool.write(CONFIG, config.as_bytes())?;
            answer
        }
    }
}

/// Writes a line to the client's socket, as `write_to_qrsh` of `qlogin_starter.c` does.
fn write_to(address: &str, line: &str) -> Result<()> {
    let failed = |error: std::io::Error| Error::new(format!("call the job's client: {error}")).value(address);
    let all: Vec<_> = address.to_socket_addrs().map_err(failed)?.collect();
    let mut found = Err(Error::new("the job's client has no address:").value(address));
    // A user can name an address that resolves to any number of hosts.
    let deadline = Instant::now() + PATIENCE;
    for one in all {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        found = TcpStream::connect_timeout(&one, left).map_err(failed);
        if found.is_ok() {
            break;
        }
    }
    let mut stream = found?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.write_all(line.as_bytes()).map_err(failed)
}

/// Runs a shepherd with the replaced files of the spool. It needs no fence, since nothing of the job's user runs in it. It ends with its
/// client, and at qdel, as each shepherd does.
fn by_shepherd(spool: &Spool, program: &CString, name: &OsStr) -> Result<bool> {
    let mut child = ShepherdProcess::start(program, name, spool.user, |_| Ok(()), || Ok(()))?;
    loop {
        match child.next()? {
            ShepherdEvent::Ended(how) => {
                let status = spool.dir.read_if_there(EXIT_STATUS)?.unwrap_or_default();
                return Ok(how.is_success() && status.trim() == "0");
            }
            ShepherdEvent::Signal(signal) => child.pass_on(signal),
            ShepherdEvent::HasPid => spool.write(process::PID, format!("{}\n", Pid::this()).as_bytes())?,
            ShepherdEvent::JobBegins => {}
        }
    }
}
