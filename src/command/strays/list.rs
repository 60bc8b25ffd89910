// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence strays`: the dry run. It says what `jobfence hold` would do with each process, and why; nothing is done.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::SystemTime;

use clap::Args;
use jobfence::config::{Config, StraysAction};
use jobfence::host::Host;
use jobfence::job::Id;
use jobfence::report::account::utc;
use jobfence::report::json::{Object, array};

use super::accounts::StrayAccounts;
use super::adopt::newest_job;
use super::containers::StrayContainer;
use super::search::{FoundStrays, Stray, StraysSearch};
use crate::command::{Failure, require_root};
use crate::configured::Configured;
use crate::table::{self, cut, numbers, printable, texts};

/// The name of the printed object's format.
pub const SCHEMA: &str = "jobfence-strays-1";

#[derive(Args)]
pub struct StraysOptions {
    /// Print one JSON object, whose members jobfence(8) lists
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    configured: Configured,
}

/// What would be done with one stray.
struct PlannedForStray {
    action: &'static str,
    why: String,
    job: Option<Id>,
}

/// Lists the strays. Fails if not all processes can be seen.
pub fn strays(options: &StraysOptions) -> Result<ExitCode, Failure> {
    require_root("'jobfence strays'")?;
    let loaded = options.configured.load()?;
    let config = &loaded.config;
    let (host, no_cgroups) = Host::read_what_there_is(config)?;
    if let Some(error) = no_cgroups {
        return Err(error.into());
    }
    let accounts = StrayAccounts::new(config, Some(&loaded));
    let FoundStrays { mut all, containers, doubt, is_whole, .. } =
        StraysSearch::new(&host, (config, Some(&loaded)), &accounts).find()?;
    let mut jobs = HashMap::new();
    let mut job =
        |uid| jobs.entry(uid).or_insert_with(|| newest_job(&host, config, uid).map_err(|e| e.to_string())).clone();
    all.retain(|stray| containers.iter().all(|container| container.first != stray.id));
    let mut rows: Vec<_> =
        all.into_iter().map(|stray| (planned(config, &stray, doubt.as_deref(), &mut job), stray)).collect();
    rows.extend(containers.iter().map(|container| row_of(config, &accounts, container)));
    if options.json {
        println!("{}", document(&rows, doubt.as_deref()));
    } else {
        print(&rows, doubt.as_deref());
    }
    if !is_whole {
        eprintln!("jobfence: there was no time to look at every process");
    }
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn planned(
    config: &Config,
    stray: &Stray,
    doubt: Option<&str>,
    job: &mut dyn FnMut(u32) -> Result<Option<Id>, String>,
) -> PlannedForStray {
    let after = config.strays_grace.as_secs();
    let plain = |action, why: String| PlannedForStray { action, why, job: None };
    match (&stray.judged, doubt) {
        (Err(why), _) => plain("nothing", why.clone()),
        (Ok(StraysAction::Off), _) => plain("nothing", "Strays=off".to_owned()),
        (Ok(StraysAction::Report), _) => plain("report", format!("after {after} s")),
        (Ok(_), Some(why)) => plain("report", format!("and nothing more, since {why}")),
        (Ok(StraysAction::Kill), None) => {
            plain("kill", format!("SIGTERM after {after} s, SIGKILL after {after} s more"))
        }
        (Ok(StraysAction::Adopt), None) => match job(stray.uid) {
            Ok(Some(id)) => {
                PlannedForStray { action: "adopt", why: format!("into job {id} after {after} s"), job: Some(id) }
            }
            Ok(None) => plain("report", "its user has no job on this node that it can go into".to_owned()),
            Err(why) => plain("report", why),
        },
    }
}

/// The line of a container: that of its first process.
fn row_of(config: &Config, accounts: &StrayAccounts<'_>, container: &StrayContainer) -> (PlannedForStray, Stray) {
    let (action, when) = match config.strays {
        StraysAction::Off => ("nothing", "Strays=off".to_owned()),
        _ => ("report", format!("after {} s", config.strays_grace.as_secs())),
    };
    let StrayContainer { first, uid, name, cgroup, .. } = container.clone();
    let user = accounts.get(uid).name.unwrap_or_else(|| uid.to_string());
    let planned = PlannedForStray { action, why: format!("{}: {when}", container.named()), job: None };
    (planned, Stray { id: first, uid, user, name, cgroup, judged: Ok(StraysAction::Report) })
}

fn print(rows: &[(PlannedForStray, Stray)], doubt: Option<&str>) {
    if rows.is_empty() {
        eprintln!("jobfence: no process of a user's is in no fence on this node");
    }
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|(planned, stray)| {
            vec![
                stray.id.pid.to_string(),
                cut(&stray.user, 16),
                cut(&printable(&stray.name), 15),
                planned.action.to_owned(),
                printable(&planned.why),
                printable(&stray.cgroup),
            ]
        })
        .collect();
    let columns = [numbers("PID"), texts("USER"), texts("COMMAND"), texts("DONE"), texts("WHY"), texts("CGROUP")];
    if !cells.is_empty() {
        table::lines(&columns, &cells, None).iter().for_each(|line| println!("{line}"));
    }
    if let Some(why) = doubt {
        eprintln!("jobfence: nothing but a report is done now, since {why}");
    }
}

fn document(rows: &[(PlannedForStray, Stray)], doubt: Option<&str>) -> String {
    let one = |(planned, stray): &(PlannedForStray, Stray)| {
        Object::new()
            .add("pid", stray.id.pid)
            .add("uid", stray.uid)
            .text("user", Some(&stray.user))
            .text("command", Some(&stray.name))
            .text("cgroup", Some(&stray.cgroup))
            .text("action", Some(planned.action))
            .text("why", Some(&planned.why))
            .text("job", planned.job.as_ref().map(Id::as_str))
            .end()
    };
    let node = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    Object::new()
        .text("schema", Some(SCHEMA))
        .text("node", node.as_deref())
        .text("time", Some(&utc(SystemTime::now())))
        .text("doubt", doubt)
        .add("processes", array(rows.iter().map(one)))
        .end()
}
