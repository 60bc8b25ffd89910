// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence disable`: makes Slurm stop loading the plugin, and removes what fences needed, once there are none.
//!
//! The line is removed first, so that no job is refused at any time. Steps that have the plugin loaded end with it, and have all that they
//! need until then.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use jobfence::cgroup::layout::{Hierarchy, Version};
use jobfence::config::Config;
use jobfence::host::Host;
use jobfence::janitor::{self, JanitorCaller};
use jobfence::private::places;
use jobfence::record::Records;
use jobfence::schedulers::slurm::daemons;
use jobfence::schedulers::slurm::plugins::Slurm;
use jobfence::schedulers::{ALL, KEPT};
use jobfence::sys::dir::Dir;
use jobfence::sys::systemd::is_systemd;

use crate::command::{Failure, require_root};
use crate::part::AfterUndo;
use crate::schedulers::slurm::line::{self, InstalledLine};
use crate::systemd::{self, Service, systemds_own};
use crate::{metrics_file, series};

/// The exit status if jobfence is off, but something of it is still needed.
const STILL_NEEDED: u8 = 3;

/// Far longer than a step daemon takes from reading the line to loading the plugin.
const LOADING: Duration = Duration::from_secs(1);

/// How long systemd may take to remove a scope.
const SCOPE: Duration = Duration::from_secs(10);

#[derive(Args)]
pub struct DisableOptions {
    /// Take the plugin's line from this file [default: PREFIX/share/jobfence/plugstack.conf]
    #[arg(long, value_name = "FILE")]
    line: Option<PathBuf>,
    /// Leave jobfence.service, and all else that jobs of another scheduler on this node need
    #[arg(long)]
    keep_service: bool,
}

/// Fails only while the plugin is still on.
pub fn disable(options: &DisableOptions) -> Result<ExitCode, Failure> {
    require_root("'jobfence disable'")?;
    let line = InstalledLine::installed(options.line.as_deref());
    // Read the configuration before the line is gone.
    let config = config(if line.active.is_file() { &line.active } else { line.candidate() });
    let loaded_from = plugins(&line);
    turn_off(&line)?;
    clear(&config, &loaded_from, options.keep_service).or_else(|error| {
        println!("disabled       no new step is fenced, but something is left: {error}");
        Ok(ExitCode::from(STILL_NEEDED))
    })
}

/// Removes what no step needs, when Slurm does not load the plugin any more.
fn clear(config: &Config, loaded_from: &[String], keep_service: bool) -> Result<ExitCode, Failure> {
    let host = Host::read_what_there_is(config)?.0;
    std::thread::sleep(LOADING);
    let mut needed = still_loaded(&host.proc, loaded_from)?;
    if needed.is_empty() && !keep_service {
        needed = still_recorded(&host, config)?;
    }
    if !needed.is_empty() {
        if host.systemd && !keep_service {
            Service::disable()?;
        }
        println!(
            "disabled       no new step is fenced; running ones end as they are. Run this again when they have ended:"
        );
        needed.iter().for_each(|what| println!("               {what}"));
        return Ok(ExitCode::from(STILL_NEEDED));
    }
    if keep_service {
        println!("disabled       no step of Slurm is fenced; jobfence.service and what it needs stay");
        return Ok(ExitCode::SUCCESS);
    }
    if host.systemd {
        Service::stop()?;
    }
    let limited = still_limited(&host, config);
    if !limited.is_empty() {
        // The files below RunDir say what users had before.
        println!("disabled       no new step is fenced. Run this again when this is mended:");
        limited.iter().for_each(|what| println!("               {what}"));
        return Ok(ExitCode::from(STILL_NEEDED));
    }
    remove_directories(&host)?;
    if !places::forget_all(&config.run_dir)? || !Records::remove(&config.run_dir, &KEPT)? {
        println!(
            "disabled       something still writes into {}: does Prolog= in slurm.conf call 'jobfence prolog'?",
            config.run_dir.display()
        );
        return Ok(ExitCode::from(STILL_NEEDED));
    }
    for left in [metrics_file::forget(config), series::remove_all(&config.run_dir).map_err(|error| error.to_string())] {
        left.unwrap_or_else(|why| println!("kept           {why}"));
    }
    println!("disabled       no step is fenced; nothing of jobfence runs, and nothing but its files is left");
    Ok(ExitCode::SUCCESS)
}

/// For `jobfence setup --undo`: the same, if jobfence.service does not need anything of it afterwards.
pub fn clear_up(line: &InstalledLine) -> AfterUndo {
    let config = config(if line.active.is_file() { &line.active } else { line.candidate() });
    let loaded_from = plugins(line);
    Box::new(move || {
        // Without RunDir no step was ever fenced.
        if !config.run_dir.exists() || is_systemd() && systemd::state().is_some_and(|service| service.active) {
            return Ok(None);
        }
        let is_clear = clear(&config, &loaded_from, false)? == ExitCode::SUCCESS;
        Ok((!is_clear).then(|| "when these have ended, run 'jobfence disable', which removes the rest".to_owned()))
    })
}

/// The configuration, which says where fences are. A file with mistakes must not prevent disabling.
fn config(line: &Path) -> Config {
    match line::configured(line).load() {
        Ok(loaded) => loaded.config,
        Err(errors) => {
            log::warn!("{errors}; going on with the default RunDir and CgroupBase");
            Config::default()
        }
    }
}

/// The files that the step daemons may have loaded, by their resolved paths.
fn plugins(line: &InstalledLine) -> Vec<String> {
    let active = InstalledLine::installed(Some(&line.active)).plugin;
    let files = [line.plugin.clone(), active].into_iter().flatten();
    files.map(|file| fs::canonicalize(&file).unwrap_or(file).to_string_lossy().into_owned()).collect()
}

fn turn_off(line: &InstalledLine) -> Result<(), Failure> {
    if let Some(kept) = line.deactivate()? {
        println!("kept           the changed line is in {}; 'jobfence enable' takes it from there", kept.display());
    }
    let Some(slurm) = Slurm::read(line.config.as_deref()) else { return Ok(()) };
    if let Some(line) = line::loading(&slurm) {
        return Err(format!("jobfence is still on, by another line: {line}. Remove that, and run this again").into());
    }
    if line::is_fetched(&slurm) { Ok(()) } else { line.remove_include(slurm.plugstack()) }
}

/// The step daemons that have one of these files loaded, even if a newer one has replaced it.
fn still_loaded(proc: &Dir, files: &[String]) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    for (daemon, title) in daemons::all(proc)? {
        // The daemon may end meanwhile.
        let maps = proc.read(&format!("{}/maps", daemon.pid)).unwrap_or_default();
        let is_loaded = |file: &String| {
            maps.lines().any(|map| map.strip_suffix(" (deleted)").unwrap_or(map).ends_with(&format!(" {file}")))
        };
        if files.iter().any(is_loaded) {
            found.push(format!("step {} (process {})", title.trim_matches(['[', ']']), daemon.pid));
        }
    }
    Ok(found)
}

/// Login limits that were not given back.
fn still_limited(host: &Host, config: &Config) -> Vec<String> {
    let all = series::all_files(&config.run_dir, ".login").unwrap_or_default();
    let is_limited = |user: &&serde_json::Value| user["way"].is_string() && user["boot"] == host.boot_id.as_str();
    let words = |user: &serde_json::Value| format!("login limits of uid {}: say 'jobfence reap'", user["uid"]);
    all.iter().filter(is_limited).map(words).collect()
}

/// Fences of other processes than step daemons (`jobfence run`), and what cannot be removed. Runs the janitor first.
fn still_recorded(host: &Host, config: &Config) -> Result<Vec<String>, Failure> {
    if !config.run_dir.exists() {
        return Ok(Vec::new());
    }
    let reaped = janitor::reap(host, config, ALL, JanitorCaller::command(), Instant::now() + janitor::PATIENCE)?;
    let alive = reaped.alive + reaped.busy;
    let alive = (alive > 0).then(|| format!("{alive} in {}", config.run_dir.display()));
    Ok(reaped.failed.into_iter().chain(alive).collect())
}

/// Removes jobfence's directories above those of users, which are empty by now.
fn remove_directories(host: &Host) -> Result<(), Failure> {
    let (above, base) = host.base.rsplit_once('/').unwrap_or(("", &host.base));
    let is_systemds = |hierarchy: &&Hierarchy| {
        host.systemd && (hierarchy.version == Version::V2 || hierarchy.name.as_deref() == Some("systemd"))
    };
    if let Some(hierarchy) = systemds_own(&host.layout).filter(|_| host.systemd) {
        // systemd removes the scope when it has noticed that the last process has ended.
        let deadline = Instant::now() + SCOPE;
        while below(hierarchy, &host.base).is_some() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        if below(hierarchy, above).is_some_and(|slice| slice.list(true).is_ok_and(|units| units.is_empty())) {
            systemd::stop_empty(above);
        }
    }
    for hierarchy in host.layout.hierarchies.iter().filter(|hierarchy| !is_systemds(hierarchy)) {
        if let Some(top) = below(hierarchy, &host.base) {
            // The directories of nodes that share the host.
            for node in top.list(true)? {
                let _ = top.remove(&node);
            }
        }
        // A directory that is not empty stays: others may have made something in it.
        let _ = below(hierarchy, above).map(|parent| parent.remove(base));
        if !above.is_empty() {
            let _ = hierarchy.open()?.remove(above);
        }
    }
    Ok(())
}

/// A directory in this hierarchy. `None`: it does not exist.
fn below(hierarchy: &Hierarchy, path: &str) -> Option<Dir> {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.into_iter().try_fold(hierarchy.open().ok()?, |dir, name| dir.child(name).ok())
}
