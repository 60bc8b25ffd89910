// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence host`: how much of this node a scheduler can grant to jobs.
//!
//! A scheduler that grants all of a node's memory lets its jobs take what the system needs, and the kernel then kills at random.

pub mod cpus;
pub mod grantable;
pub mod memory;
pub mod way;

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use jobfence::host::Host;
use jobfence::schedulers::slurm::conf;

use crate::command::Failure;
use crate::configured::Configured;
use crate::schedulers::gridengine;
use crate::schedulers::htcondor::monitor;
use crate::schedulers::{pbs, slurm};
use grantable::{Grantable, Reserve, reserve};

#[derive(Args)]
pub struct HostOptions {
    /// Memory to keep for the system beyond what it uses now, such as 2G or 5% [default: none]
    ///
    /// A plain number is MiB. A percentage is a whole number.
    #[arg(long, value_name = "SIZE|PERCENT", value_parser = reserve)]
    reserve: Option<Reserve>,
    /// Print what this node's line in slurm.conf should say, with the reasons as comments
    ///
    /// CPUs and RealMemory go to the line of this node. The other fields are as 'slurmd -C' prints them.
    #[arg(long, conflicts_with_all = ["json", "pbs", "gridengine", "htcondor"], group = "named")]
    slurm: bool,
    /// Print commands for qmgr of OpenPBS, with the reasons as comments
    ///
    /// The commands set mem, vmem and ncpus of this node. On the server, pipe them into qmgr: ssh node1 jobfence host --pbs | qmgr.
    #[arg(long, conflicts_with = "json", group = "named")]
    pbs: bool,
    /// The host's name in the scheduler [default: that of slurm.conf, or PBS_MOM_NODE_NAME of pbs.conf, or the host's short name; with
    /// --apply its name]
    #[arg(long, value_name = "NAME", value_parser = pbs::node::name, requires = "named")]
    node: Option<String>,
    /// Be a load sensor of Grid Engine: report for each line on stdin, until "quit"
    ///
    /// What goes wrong is in syslog, since execd reads no stderr of a load sensor.
    /// When the sensor starts, syslog also has what the site must set in its complexes, as 'jobfence check' says it.
    #[arg(long, conflicts_with_all = ["pbs", "json"])]
    gridengine: bool,
    /// Have qmaster of Grid Engine grant what jobs can have of this host, by qconf
    ///
    /// qconf sets complex_values of the host: memory for each consumable of SlotMemory, the GPUs of GPUDevice for each of SlotGPUs,
    /// hardware threads for each of SlotCPUs, and slots, of which each has CPUsPerSlot hardware threads.
    /// What is so already, and each other complex, is left alone. If qmaster does not know the host, the host becomes an execution host.
    /// The command prints a line for each thing.
    ///
    /// The host must be an administrative host, and the user a manager of Grid Engine.
    #[arg(long, requires = "gridengine", group = "named")]
    apply: bool,
    /// Print attributes for the ads of HTCondor's slots, as STARTD_CRON reads them
    #[arg(long, conflicts_with_all = ["pbs", "json", "gridengine"])]
    htcondor: bool,
    /// Print one JSON object, whose members jobfence(8) lists
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    configured: Configured,
}

impl HostOptions {
    /// Whether execd runs the command as a load sensor.
    pub fn is_sensor(&self) -> bool {
        self.gridengine && !self.apply
    }
}

/// Prints what jobs can be granted on this node.
pub fn host(options: &HostOptions) -> Result<ExitCode, Failure> {
    if options.apply {
        print!("{}", gridengine::host::applied(&options.configured, options.reserve, options.node.clone())?);
        return Ok(ExitCode::SUCCESS);
    }
    if options.is_sensor() {
        gridengine::host::sense(&options.configured, options.reserve)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    if options.htcondor {
        // START of the site needs this text, so it comes first, even where nothing else can be said.
        print!("{}", monitor::text(&options.configured, options.reserve));
        return Ok(ExitCode::SUCCESS);
    }
    let config = options.configured.load()?.config;
    let (host, no_cgroups) = Host::read_what_there_is(&config)?;
    let grantable = Grantable::read(&host, &config, options.reserve)?;
    if options.json {
        writeln!(text, "{}", grantable.json())?;
    } else {
        let mark = if options.pbs || options.slurm { "# " } else { "" };
        for line in grantable.reasons(no_cgroups.map(|error| error.to_string())) {
            writeln!(text, "{mark}{line}")?;
        }
    }
    if options.slurm {
        let slurm_conf = conf::find(options.configured.config.as_deref());
        let node = slurm::node::name(options.node.as_deref(), slurm_conf.as_deref());
        text += &slurm::node::line(&node.unwrap_or_else(slurm::node::host), &grantable);
    }
    if options.pbs {
        let node = options.node.clone().map_or_else(pbs::node::node, Ok)?;
        for (resource, value) in pbs::node::resources(&grantable) {
            writeln!(text, "set node {node} resources_available.{resource} = {value}")?;
        }
    }
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}
