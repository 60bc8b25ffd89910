// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence setup` does for Slurm: what `jobfence enable` does, as steps that can be shown before and taken back after.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jobfence::config::Mode;
use jobfence::host::Host;
use jobfence::schedulers::slurm::plugins::{ByConfig, Slurm};
use jobfence::schedulers::slurm::plugstack;
use jobfence::sys::program::{AskedProgram, Silence};
use nix::unistd::{Uid, User};

use super::job::KEPT;
use super::line::{self, InstalledLine};
use super::{load, node, pam};
use crate::command::Failure;
use crate::part::StartsJobs;
use crate::setup::plan::{FileChange, JobTried, PlannedCheck, SetupAction, SetupHost, SetupPlan, SetupStep, is_shared};

/// The name of the line that the package or 'make install' has put into `PREFIX/share/jobfence`.
const LINE: &str = "plugstack.conf";

/// How much earlier srun gives up than it is ended: then it leaves no job behind.
const MARGIN: Duration = Duration::from_secs(15);

/// The line of this installation.
pub fn installed(host: &SetupHost) -> InstalledLine {
    InstalledLine::installed(Some(&host.data.join(LINE)))
}

pub fn plan(host: &SetupHost) -> Result<Option<SetupPlan>, Failure> {
    let line = installed(host);
    let release = load::release();
    let Some(slurm) = Slurm::read(line.config.as_deref()) else {
        return Ok(release.map(|release| SetupPlan {
            found: vec![format!("{release} is installed")],
            obstacle: Some("slurm.conf was not found: run this with SLURM_CONF=FILE, as slurmd has it".to_owned()),
            ..Default::default()
        }));
    };
    let fetched = if line::is_fetched(&slurm) { ", which slurmd has fetched from the controller" } else { "" };
    let release = release.unwrap_or_else(|| "no slurmd was found, so the release is not known".to_owned());
    let mut plan = SetupPlan {
        found: vec![format!("{release}; its configuration is {}{fetched}", slurm.file().display())],
        ..Default::default()
    };
    match node::name(None, Some(slurm.file())) {
        Some(name) => plan.found.push(format!("this host is the node {name}")),
        None if load::runs(&host.proc) => {
            plan.found.push("slurmd runs here; slurm.conf does not say as which node".to_owned())
        }
        None => {
            plan.found
                .push("this host is no node of slurm.conf, and runs no slurmd: nothing is to be done here".to_owned());
            plan.is_bystander = true;
            return Ok(Some(plan));
        }
    }
    if line.plugin.is_none() {
        let file = line.template.display();
        plan.obstacle = Some(format!(
            "there is no line for Slurm in {file}: install the package jobfence-slurm, or run 'make install'"
        ));
        return Ok(Some(plan));
    }
    plan.steps.extend(SetupStep::service());
    match line::loading(&slurm) {
        Some(active) => {
            plan.found.push(format!("Slurm loads the plugin already: {active}"));
            plan.config = line::active(&slurm).config;
            if line.active.exists() && !line.is_unchanged() {
                let (active, template) = (line.active.display(), line.template.display());
                plan.steps.push(SetupStep::remark(format!(
                    "{active} was changed, and stays as it is; the line of this release is in {template}"
                )));
            }
        }
        None => turn_on(&line, &slurm, &mut plan)?,
    }
    by_hand(host, &line, &slurm, &mut plan);
    Ok(Some(plan))
}

/// The line goes where Slurm reads it, once the check has found that jobs would be fenced by it.
fn turn_on(line: &InstalledLine, slurm: &Slurm, plan: &mut SetupPlan) -> Result<(), Failure> {
    let candidate = line.candidate().to_owned();
    let text = std::fs::read(&candidate).map_err(|error| format!("read {}: {error}", candidate.display()))?;
    plan.config = line::configured(&candidate).config;
    let config = plan.config.clone();
    plan.steps
        .push(SetupStep::condition("'jobfence check' finds that jobs would be fenced by the new line", move |check| {
            check(PlannedCheck { plugstack: Some(candidate.clone()), config: config.clone() })
        }));
    let mut files = vec![SetupStep::file(&line.active, text, "Slurm loads the plugin by it")];
    if line.kept.is_file() {
        let kept = FileChange { path: line.kept.clone(), text: None, mode: 0 };
        files.push(SetupStep {
            why: "its text is in the file above".to_owned(),
            is_central: false,
            action: SetupAction::File(kept),
        });
    }
    let plugstack = slurm.plugstack();
    if !plugstack::would_read(plugstack, &line.active) {
        if line::is_fetched(slurm) {
            plan.obstacle = Some(format!(
                "the controller serves a plugstack.conf that does not include this node's line. Add to the controller's: {}; run \
                 'scontrol reconfigure', and this again (docs/install/slurm.md, Configless Slurm)",
                line.include()
            ));
        }
        files.push(SetupStep::file(plugstack, line.with_include(plugstack)?, "Slurm reads the line"));
    }
    let (files, shared) = by_place(files, is_shared);
    plan.found.extend(shared.iter().map(|path| {
        format!(
            "{} is on a file system that nodes share: the line turns jobfence on for all of them, so first install it on each",
            path.display()
        )
    }));
    plan.steps.extend(files);
    Ok(())
}

/// Has each file that nodes share be a central step: it may be a link out of a directory that they do not share. Returns those files, too.
fn by_place(files: Vec<SetupStep>, is_shared: impl Fn(&Path) -> bool) -> (Vec<SetupStep>, Vec<PathBuf>) {
    let mut shared = Vec::new();
    let mut steps = Vec::new();
    for step in files {
        let SetupAction::File(file) = &step.action else { continue };
        let is_shared = is_shared(&file.path);
        // The administrator's version of the line goes only when the line is there.
        let is_central = is_shared || file.text.is_none() && !shared.is_empty();
        if is_shared {
            shared.push(file.path.clone());
        }
        steps.push(if is_central { step.central() } else { step });
    }
    (steps, shared)
}

/// What setup leaves to the administrator: slurm.conf and PAM's configuration.
fn by_hand(host: &SetupHost, line: &InstalledLine, slurm: &Slurm, plan: &mut SetupPlan) {
    let configured = if line.active.is_file() { line::active(slurm) } else { line::configured(line.candidate()) };
    let Ok(loaded) = configured.load() else { return };
    if (loaded.asked().job || loaded.config.gpu_device.is_some()) && !slurm.has_prolog() {
        plan.steps.push(SetupStep::remark(format!(
            "sections by partition, QOS or account, and GPUDevice, need Prolog= and Epilog= in slurm.conf, which call '{0} prolog' \
             and '{0} epilog': docs/install/slurm.md, Prolog and Epilog",
            host.program.display()
        )));
    }
    let Ok((cgroups, _)) = Host::read_what_there_is(&loaded.config) else { return };
    let mut own = false;
    for hierarchy in &cgroups.layout.hierarchies {
        let (placement, because) = match slurm.placement(hierarchy) {
            ByConfig::Own(because) => ("own", because),
            ByConfig::Overlay(because) => ("overlay", because),
        };
        own |= placement == "own";
        // Each placement once, with the first reason.
        let begin = format!("placement {placement}: ");
        if !plan.found.iter().any(|found| found.starts_with(&begin)) {
            plan.found.push(begin + &because);
        }
    }
    let plugin = line.plugin.as_deref().unwrap_or(Path::new("libjobfence.so"));
    let faults = pam::faults(Path::new(pam::DIRECTORY), &format!("session required {}", plugin.display()), own);
    plan.steps.extend(faults.into_iter().map(SetupStep::remark));
}

/// Whether this host is a node whose steps load the plugin.
pub fn starts_jobs(host: &SetupHost) -> StartsJobs {
    let is_node = |slurm: &Slurm| node::name(None, Some(slurm.file())).is_some() || load::runs(&host.proc);
    let slurm = Slurm::read(installed(host).config.as_deref()).filter(|slurm| load::is_installed() && is_node(slurm));
    match slurm.and_then(|slurm| Some((line::found(&slurm)?, slurm.plugstack().to_owned()))) {
        Some((line, plugstack)) => {
            StartsJobs::Yes { by: line.to_string(), files: vec![line.file, plugstack], commands: &[] }
        }
        None => StartsJobs::No,
    }
}

/// Has Slurm run a job on this node: as the user who has logged in, if the kernel knows one, or else as root.
pub fn try_job(host: &SetupHost, deadline: Instant) -> JobTried {
    let line = installed(host);
    let Some(slurm) = Slurm::read(line.config.as_deref()) else {
        return JobTried::NotRun("there is no slurm.conf".to_owned());
    };
    if line::active(&slurm).load().is_ok_and(|loaded| loaded.config.mode == Mode::Off) {
        return JobTried::NotRun("Mode=off".to_owned());
    }
    let Some(node) = node::name(None, Some(slurm.file())) else {
        return JobTried::NotRun("which node of slurm.conf this host is cannot be seen".to_owned());
    };
    let login = std::fs::read_to_string("/proc/self/loginuid").ok().and_then(|uid| uid.trim().parse::<u32>().ok());
    let login = login
        .filter(|uid| ![0, u32::MAX].contains(uid))
        .and_then(|uid| User::from_uid(Uid::from_raw(uid)).ok().flatten());
    let ask = |argv: &[&str], deadline| {
        let conf = slurm.file().display().to_string();
        let program = argv.first().copied().unwrap_or_default();
        AskedProgram::new(program, argv.get(1..).unwrap_or_default(), KEPT).with([("SLURM_CONF", conf)]).ask(deadline)
    };
    let partition = match ask(&["sinfo", "-h", "-n", &node, "-o", "%R"], deadline) {
        Ok(said) => said.lines().next().unwrap_or_default().trim().to_owned(),
        Err(why) => return JobTried::NotRun(format!("sinfo: {}", one_line(&why))),
    };
    let wait = deadline.saturating_duration_since(Instant::now()).saturating_sub(MARGIN).as_secs().max(1);
    let [node, partition, wait] =
        [format!("--nodelist={node}"), format!("--partition={partition}"), format!("--immediate={wait}")];
    let job = [
        "srun",
        "--quiet",
        "--nodes=1",
        "--ntasks=1",
        "--mem=50",
        "--time=1",
        "--chdir=/",
        "--job-name=jobfence-setup",
        &node,
        &partition,
        &wait,
        "sh",
        "-c",
        "echo \"$SLURM_JOB_ID $JOBFENCE_CGROUP\"",
    ];
    let runuser = login.as_ref().map(|user| ["runuser", "-u", user.name.as_str(), "--"]);
    let mut said = Err(Silence::Late);
    // A login that Slurm does not know as a user says nothing about jobfence.
    for before in runuser.iter().map(<[&str; 4]>::as_slice).chain([&[][..]]) {
        said = ask(&[before, &job].concat(), deadline);
        if said.as_ref().err().is_none_or(|why| !was_not_accepted(why)) {
            break;
        }
    }
    match said {
        Ok(said) => by_output(&said),
        Err(why) if was_not_accepted(&why) => JobTried::NotRun(one_line(&why)),
        Err(why) => JobTried::Unfenced(format!("a job failed: {}", one_line(&why))),
    }
}

/// The job's last line is its own: a TaskProlog may print others before.
fn by_output(said: &str) -> JobTried {
    let line = said.trim_end().lines().next_back().unwrap_or_default();
    let (id, cgroup) = line.split_once(' ').unwrap_or((line, ""));
    if cgroup.starts_with('/') {
        JobTried::Fenced(format!("job {id} ran in {cgroup}"))
    } else {
        JobTried::Unfenced(format!("job {id} ran without a fence: see slurmd's log"))
    }
}

/// Whether the job did not come so far that jobfence had to do with it. Source: src/srun/libsrun/allocate.c.
fn was_not_accepted(why: &Silence) -> bool {
    match why {
        Silence::Failed(said) => said.contains("Unable to allocate resources") || said.contains("runuser:"),
        Silence::Start(_) | Silence::Late | Silence::Long => true,
    }
}

fn one_line(why: &Silence) -> String {
    why.to_string().replace('\n', "; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_jobs_own_line_counts() {
        for (said, fenced) in [
            ("12 /a/b/step_0\n", true),
            ("a word of TaskProlog /x\n\n12 /a/b/step_0\n", true),
            ("12 \n", false),
            ("12\n", false),
            ("a word of TaskProlog\n12 \n", false),
            ("all /is /well\n12 \n", false),
            ("12 is no cgroup\n", false),
            ("", false),
        ] {
            let (JobTried::Fenced(what) | JobTried::Unfenced(what)) = by_output(said) else { panic!() };
            let ran = if fenced { "job 12 ran in /a/b/step_0" } else { "ran without a fence" };
            assert!(what.contains(ran), "{said:?}: {what}");
        }
    }

    #[test]
    fn each_file_that_nodes_share_is_central() {
        let files = || {
            let kept = FileChange { path: "/etc/kept".into(), text: None, mode: 0 };
            let kept = SetupStep { why: String::new(), is_central: false, action: SetupAction::File(kept) };
            vec![SetupStep::file("/etc/line", "x", "a"), kept, SetupStep::file("/etc/plugstack.conf", "x", "a")]
        };
        for (at, central) in [
            ("nowhere", [false; 3]),
            ("/etc/plugstack.conf", [false, false, true]),
            // What its text came from stays with it.
            ("/etc/line", [true, true, false]),
        ] {
            let (steps, shared) = by_place(files(), |path| path == Path::new(at));
            assert_eq!(steps.iter().map(|step| step.is_central).collect::<Vec<_>>(), central, "{at}");
            assert!(shared.iter().all(|path| path == Path::new(at)) && shared.is_empty() == (central == [false; 3]));
        }
    }
}
