// SPDX-License-Identifier: GPL-2.0-or-later
//! What MoM's directory says about a site of OpenPBS: for `jobfence check` and `jobfence pbs-config`. The page lists what changes for a
//! site; each item that can be seen on the host has its line here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A hook that MoM has, or the server.
#[derive(Debug)]
pub struct MomHook {
    pub name: String,
    keys: BTreeMap<String, String>,
    pub is_ours: bool,
}

impl MomHook {
    pub fn value(&self, key: &str) -> &str {
        self.keys.get(key).map_or("", String::as_str)
    }

    /// A hook is enabled unless its attributes say otherwise.
    pub fn is_enabled(&self) -> bool {
        !self.value("enabled").eq_ignore_ascii_case("false")
    }

    fn has(&self, event: &str) -> bool {
        self.is_enabled() && self.value("event").split(',').any(|one| one == event)
    }
}

/// A line, by how serious it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MomSays {
    /// A state that is neither wrong nor surprising.
    Fact(String),
    /// A difference from what the site may expect.
    Hint(String),
    /// A reason why no job is fenced as configured.
    Fault(String),
    /// What is still to be done before any job is fenced.
    NotYet(String),
}

/// The parts of jobfence.conf that matter here.
pub struct ForMom<'a> {
    /// The file itself, if it is known.
    pub file: Option<&'a Path>,
    /// The file that counts if none is named.
    pub by_default: Option<PathBuf>,
    /// The headers of its sections.
    pub sections: Vec<&'a str>,
    /// Whether it sets GPUDevice.
    pub has_gpus: bool,
}

/// The site's scripts, each with its event. MoM runs the script only if no hook has that event.
const SCRIPTS: [(&str, &str); 2] = [("prologue", "execjob_prologue"), ("epilogue", "execjob_epilogue")];

/// After how many seconds MoM ends a hook or a script, by default.
const ALARM: u64 = 30;

/// A hook whose program has this word is jobfence's hook, whatever the site calls it.
const OURS: &str = "jobfence_abi_version";

/// All lines, in the order of the page. Empty if the directory cannot be read.
pub fn lines(mom_priv: &Path, conf: &ForMom<'_>) -> Vec<MomSays> {
    let Some(hooks) = hooks(mom_priv) else { return Vec::new() };
    let ours = hooks.iter().find(|hook| hook.is_ours);
    let mut said = of_our_hook(mom_priv, ours, conf);
    let enabled_ours = ours.filter(|hook| hook.is_enabled());
    if enabled_ours.is_some()
        && let Some(stock) = hooks.iter().find(|hook| hook.name == "pbs_cgroups" && hook.is_enabled())
    {
        said.push(MomSays::Fault(format!(
            "the hook {} is enabled beside ours, and puts each job into cgroups of its own: set it to enabled = false",
            stock.name
        )));
    }
    said.extend(of_scripts(mom_priv, &hooks, enabled_ours));
    let types: Vec<&str> = conf.sections.iter().copied().filter(|header| header.starts_with("[VnodeType=")).collect();
    let vntype = fs::read_to_string(mom_priv.join("vntype")).unwrap_or_default();
    if let (false, None | Some("")) = (types.is_empty(), vntype.lines().next().map(str::trim)) {
        said.push(MomSays::Hint(format!(
            "{} does not say of which type the vnodes are, so each job has the strictest of what {} say",
            mom_priv.join("vntype").display(),
            types.join(", ")
        )));
    }
    if shares_whole_hosts(mom_priv) {
        said.push(MomSays::Hint(format!(
            "{} has sharing=ignore_excl: a job with place=exclhost is not alone here, and has its quota of CPU time",
            mom_priv.join("config.d").display()
        )));
    }
    if conf.has_gpus {
        said.push(MomSays::Fact(
            "GPUDevice is set: a job has GPUs if the server has the resource ngpus, and the line 'resources:' of \
             sched_config names it"
                .to_owned(),
        ));
    }
    said
}

/// The hooks that MoM has in `mom_priv`, or the server in `server_priv`. `None`: their directory cannot be read.
pub fn hooks(mom_priv: &Path) -> Option<Vec<MomHook>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(mom_priv.join("hooks")).ok()?.flatten() {
        let Some(name) = entry.file_name().to_str().and_then(|name| name.strip_suffix(".HK")).map(str::to_owned) else {
            continue;
        };
        let text = fs::read(entry.path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let pair = |line: &str| line.trim().split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
        let program = fs::read(entry.path().with_extension("PY")).unwrap_or_default();
        let is_ours = program.windows(OURS.len()).any(|window| window == OURS.as_bytes());
        // MoM gets a hook's attributes before its program, and cannot run it until then.
        if !program.is_empty() {
            found.push(MomHook { name, keys: text.lines().filter_map(pair).collect(), is_ours });
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Some(found)
}

fn of_our_hook(mom_priv: &Path, ours: Option<&MomHook>, conf: &ForMom<'_>) -> Vec<MomSays> {
    let directory = mom_priv.join("hooks");
    let Some(hook) = ours else {
        let what = format!(
            "MoM has no hook of jobfence's in {}: no job is fenced until the server sends it",
            directory.display()
        );
        return vec![MomSays::NotYet(what)];
    };
    if !hook.is_enabled() {
        return vec![MomSays::NotYet(format!("the hook {} is not enabled: no job is fenced until it is", hook.name))];
    }
    let text = fs::read_to_string(directory.join(format!("{}.CF", hook.name))).unwrap_or_default();
    let value = |key: &str| {
        let of = |line: &str| Some(line.trim().strip_prefix(key)?.trim_start().strip_prefix('=')?.trim().to_owned());
        text.lines().filter_map(of).next_back()
    };
    // The default is that of the hook's DEFAULTS.
    let library = value("Library").unwrap_or_else(|| "/usr/local/lib/slurm/libjobfence.so".to_owned());
    let named = value("Config").filter(|file| !file.is_empty()).map(PathBuf::from);
    let file = named.as_ref().or(conf.by_default.as_ref());
    let by = file.map_or_else(|| "the defaults".to_owned(), |file| file.display().to_string());
    let mut said =
        vec![MomSays::Fact(format!("the hook {} puts each job into a fence, by {library} and {by}", hook.name))];
    if !Path::new(&library).is_file() {
        said.push(MomSays::Fault(format!(
            "the hook's library, {library}, is not there: Library in its configuration names it"
        )));
    }
    if let Some(named) = named.as_ref().filter(|named| !named.is_file()) {
        said.push(MomSays::Fault(format!(
            "the hook's configuration names {}, which is not there: put it there, or take the line Config= out, so that each host \
             reads its own",
            named.display()
        )));
    }
    let is_that = |checked: &Path| {
        let real = |path: &Path| fs::canonicalize(path).ok();
        file.is_some_and(|file| checked == file || real(checked).is_some_and(|path| Some(path) == real(file)))
    };
    if let Some(checked) = conf.file.filter(|checked| !is_that(checked)) {
        said.push(MomSays::Hint(format!("this check has read {}, and the hook reads {by}", checked.display())));
    }
    let missing: Vec<&str> = EVENTS.into_iter().filter(|event| !hook.has(event)).collect();
    if !missing.is_empty() {
        said.push(MomSays::Fault(format!(
            "the hook {} has not the events {}: see jobfence.HK",
            hook.name,
            missing.join(", ")
        )));
    }
    said
}

/// The events that the hook needs: without one of them, a job can be outside its fence.
pub const EVENTS: [&str; 5] =
    ["execjob_begin", "execjob_prologue", "execjob_launch", "execjob_end", "exechost_periodic"];

fn of_scripts(mom_priv: &Path, hooks: &[MomHook], ours: Option<&MomHook>) -> Vec<MomSays> {
    let mut said = Vec::new();
    let present = SCRIPTS.into_iter().filter(|(name, _)| mom_priv.join(name).is_file());
    let (taken, run): (Vec<_>, Vec<_>) =
        present.partition(|(_, event)| hooks.iter().any(|hook| !hook.is_ours && hook.has(event)));
    let named = |which: &[(&str, &str)]| {
        let names: Vec<&str> = which.iter().map(|(name, _)| *name).collect();
        format!("{}/{}", mom_priv.display(), names.join(" and "))
    };
    if !run.is_empty() {
        said.push(MomSays::Hint(format!(
            "{}: MoM does not run this beside a hook that has the event, and jobfence's hook does it in MoM's place",
            named(&run)
        )));
    }
    if !taken.is_empty() {
        said.push(MomSays::Hint(format!(
            "{}: nobody runs this, since another hook than jobfence's has the event, too",
            named(&taken)
        )));
    }
    let alarm = ours.map_or(ALARM, |hook| hook.value("alarm").parse().unwrap_or(ALARM));
    let patience = prologalarm(mom_priv);
    if !run.is_empty() && ours.is_some() && patience >= alarm {
        said.push(MomSays::Hint(format!(
            "$prologalarm is {patience}, and MoM ends the hook after {alarm} seconds, and the script with it: give the hook a \
             longer alarm"
        )));
    }
    said
}

/// How many seconds a script of the site may take.
fn prologalarm(mom_priv: &Path) -> u64 {
    let text = fs::read_to_string(mom_priv.join("config")).unwrap_or_default();
    let of = |line: &str| line.trim().strip_prefix("$prologalarm")?.trim().parse().ok();
    text.lines().filter_map(of).next_back().unwrap_or(ALARM)
}

/// Whether jobs with place=exclhost share this host, by the hook's test.
fn shares_whole_hosts(mom_priv: &Path) -> bool {
    let files = fs::read_dir(mom_priv.join("config.d")).into_iter().flatten().flatten();
    files.map(|file| fs::read_to_string(file.path()).unwrap_or_default()).any(|text| text.contains("ignore_excl"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf<'a>(file: Option<&'a Path>, sections: &[&'a str]) -> ForMom<'a> {
        ForMom { file, by_default: Some("/d".into()), sections: sections.to_vec(), has_gpus: false }
    }

    #[test]
    fn each_thing_on_the_page_has_its_line() {
        let temp = tempfile::tempdir().unwrap();
        let mom = temp.path();
        let write = |name: &str, text: &str| {
            fs::create_dir_all(mom.join(name).parent().unwrap()).unwrap();
            fs::write(mom.join(name), text).unwrap();
        };
        let library = mom.join("lib.so").display().to_string();
        let all = |sections: &[&str]| lines(mom, &conf(None, sections));
        let file = mom.join("c").display().to_string();
        let by =
            |file: &str| MomSays::Fact(format!("the hook fence puts each job into a fence, by {library} and {file}"));
        let fact = || by(&file);
        let says = |what: &MomSays, begins: &str| match what {
            MomSays::Fact(text) | MomSays::Hint(text) | MomSays::Fault(text) | MomSays::NotYet(text) => {
                assert!(text.contains(begins), "{text}")
            }
        };
        assert_eq!(all(&[]), [], "it cannot be read");
        write("hooks/other.HK", "event=execjob_begin\n");
        write("hooks/other.PY", "import pbs\n");
        says(&all(&[])[0], "MoM has no hook of jobfence's");
        let attributes = format!("enabled=true\nevent={}\nalarm=60\n", EVENTS.join(","));
        write("hooks/fence.PY", "version = self.so.jobfence_abi_version\n");
        write("hooks/fence.CF", &format!("# ours\nLibrary = {library}\nConfig={file}\n"));
        write("hooks/fence.HK", &attributes.replace("true", "false"));
        assert_eq!(
            all(&[]),
            [MomSays::NotYet("the hook fence is not enabled: no job is fenced until it is".to_owned())]
        );
        write("hooks/fence.HK", &attributes);
        assert_eq!(all(&[])[0], fact());
        says(&all(&[])[1], "is not there: Library in its configuration");
        write("lib.so", "");
        says(&all(&[])[1], "/c, which is not there: put it there, or take the line Config= out");
        write("c", "");
        assert_eq!(all(&[]), [fact()]);
        write("hooks/fence.HK", &attributes.replace(",execjob_end", ""));
        assert_eq!(
            all(&[])[1],
            MomSays::Fault("the hook fence has not the events execjob_end: see jobfence.HK".to_owned())
        );
        write("hooks/fence.HK", &attributes);

        // The stock hook stays enabled.
        write("hooks/pbs_cgroups.PY", "x");
        write("hooks/pbs_cgroups.HK", "event=execjob_begin\n");
        assert!(matches!(&all(&[])[1], MomSays::Fault(text) if text.contains("pbs_cgroups is enabled beside ours")));
        write("hooks/pbs_cgroups.HK", "event=execjob_begin\nenabled=false\n");
        assert_eq!(all(&[]), [fact()]);

        write("epilogue", "#!/bin/sh\n");
        says(&all(&[])[1], "/epilogue: MoM does not run this beside a hook");
        write("config", "$logevent 0x1ff\n$prologalarm 60\n");
        says(&all(&[])[2], "$prologalarm is 60, and MoM ends the hook after 60 seconds");
        write("hooks/other.HK", "event=execjob_begin,execjob_epilogue\n");
        says(&all(&[])[1], "/epilogue: nobody runs this");
        assert_eq!(all(&[]).len(), 2);
        fs::remove_file(mom.join("epilogue")).unwrap();

        // Types of vnodes, and hosts for one job alone.
        says(&all(&["[Queue=a]", "[VnodeType=gpu]"])[1], "vntype does not say of which type");
        write("vntype", "gpu\n");
        assert_eq!(all(&["[VnodeType=gpu]"]), [fact()]);
        write("config.d/vnodes", "$configversion 2\nn1: sharing = ignore_excl\n");
        says(&all(&[])[1], "has sharing=ignore_excl");
        says(&lines(mom, &ForMom { has_gpus: true, ..conf(None, &[]) })[2], "'resources:' of sched_config");
        says(
            &lines(mom, &conf(Some(Path::new("/another")), &[]))[1],
            &format!("this check has read /another, and the hook reads {file}"),
        );
        fs::remove_file(mom.join("config.d/vnodes")).unwrap();
        // A hook that names no file reads what the check reads without --config.
        write("hooks/fence.CF", &format!("Library={library}\n#Config=/x\n"));
        assert_eq!(lines(mom, &conf(Some(Path::new("/d")), &[])), [by("/d")]);
        says(&lines(mom, &conf(Some(Path::new("/another")), &[]))[1], "and the hook reads /d");
        assert_eq!(lines(mom, &ForMom { by_default: None, ..conf(None, &[]) }), [by("the defaults")]);
    }
}
