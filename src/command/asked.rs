// SPDX-License-Identifier: GPL-2.0-or-later
//! The options for a job's facts and for its user's requests, as in sbatch, and the parser for a user: the same for every subcommand.

use clap::Args;
use jobfence::doors::opening::vnode_types;
use jobfence::facts::{Fact, Facts};
use jobfence::requests::{REQUESTS, Requests};
use nix::unistd::User;

use crate::command::Failure;

/// The facts that sections are chosen by.
#[derive(Args)]
pub struct FactOptions {
    /// The job's partition or queue [default: unknown]
    #[arg(long, visible_alias = "queue", value_name = "NAME")]
    partition: Option<String>,
    /// The job's QOS [default: unknown]
    #[arg(long, value_name = "NAME")]
    qos: Option<String>,
    /// The job's account [default: unknown]
    #[arg(long, value_name = "NAME")]
    account: Option<String>,
    /// The job's project; "" for none [default: unknown]
    #[arg(long, value_name = "NAME")]
    project: Option<String>,
    /// The types of the job's vnodes on this node, with commas between them; "" for none [default: unknown]
    #[arg(long, value_name = "NAMES")]
    vnode_type: Option<String>,
    /// The job's parallel environment; "" for none [default: unknown]
    #[arg(long, value_name = "NAME")]
    pe: Option<String>,
}

impl FactOptions {
    /// The facts from these options, and others that are known.
    pub fn add_to(&self, facts: Facts) -> Facts {
        let named = |name: &Option<String>| Fact::from(name.clone());
        Facts {
            partition: named(&self.partition),
            qos: named(&self.qos),
            account: named(&self.account),
            project: named(&self.project),
            vnode_types: self.vnode_type.as_deref().map(vnode_types).into(),
            pe: named(&self.pe),
            ..facts
        }
    }
}

/// What the job's user asks for.
#[derive(Args)]
pub struct RequestOptions {
    /// CPUs that the job's user asks for, if less than the site allows
    #[arg(long, value_name = "CPUS")]
    cpu_limit: Option<String>,
    /// CPU burst that the job's user asks for, if less than the site allows
    #[arg(long, value_name = "PERCENT")]
    cpu_burst: Option<String>,
    /// Size above which memory is reclaimed, as the job's user asks
    #[arg(long, value_name = "SIZE")]
    mem_high: Option<String>,
    /// Processes and threads that the job's user asks for, if fewer than the site allows
    #[arg(long, value_name = "COUNT")]
    pids_max: Option<String>,
    /// Rates of I/O that the job's user asks for, if lower than the site allows
    #[arg(long, value_name = "RULES")]
    io_max: Option<String>,
    /// At which shares of its limits the job is told, as its user asks, such as mem:90%:USR1
    ///
    /// The form is that of SignalAt in jobfence.conf(5), which it replaces.
    #[arg(long, value_name = "SHARES")]
    signal_at: Option<String>,
    /// To which share of it the job's memory limit may grow, as its user asks, if the site lends memory: 100% is no loan
    #[arg(long, value_name = "PERCENT")]
    elastic_ram: Option<String>,
}

impl RequestOptions {
    /// The requests, parsed as the step daemon parses them.
    pub fn read(&self) -> Result<Requests, Failure> {
        let mut requests = Requests::default();
        let given = [
            ("cpu-limit", &self.cpu_limit),
            ("cpu-burst", &self.cpu_burst),
            ("mem-high", &self.mem_high),
            ("pids-max", &self.pids_max),
            ("io-max", &self.io_max),
            ("signal-at", &self.signal_at),
            ("elastic-ram", &self.elastic_ram),
        ];
        for (name, value) in given {
            put(name, value.as_deref(), &mut requests)?;
        }
        Ok(requests)
    }
}

/// When the user of `jobfence run` is told, and what that user wants to be lent, as those options say it.
pub fn of_run(signal_at: Option<&str>, elastic_ram: Option<&str>) -> Result<Requests, Failure> {
    let mut requests = Requests::default();
    put("signal-at", signal_at, &mut requests)?;
    put("elastic-ram", elastic_ram, &mut requests)?;
    Ok(requests)
}

fn put(name: &str, value: Option<&str>, requests: &mut Requests) -> Result<(), Failure> {
    let request = REQUESTS.iter().find(|request| request.name == name);
    if let (Some(request), Some(value)) = (request, value) {
        request.read(&format!("--{name}"), value.as_bytes(), requests)?;
    }
    Ok(())
}

/// A user of this node by name, or any uid.
pub fn user(text: &str) -> Result<(u32, Option<String>), String> {
    if let Ok(uid) = text.parse::<u32>() {
        return Ok((uid, User::from_uid(uid.into()).ok().flatten().map(|user| user.name)));
    }
    match User::from_name(text) {
        Ok(Some(user)) => Ok((user.uid.as_raw(), Some(user.name))),
        Ok(None) => Err(format!("expected a user of this node, by name or number, found {text:?}")),
        Err(errno) => Err(format!("cannot look for the user {text:?}: {}", errno.desc())),
    }
}
