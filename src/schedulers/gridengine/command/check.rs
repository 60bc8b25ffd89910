// SPDX-License-Identifier: GPL-2.0-or-later
//! Whether the execd on this host starts jobs by this program, and what else is missing.

use std::path::Path;

use jobfence::config::{Config, Loaded, PerSlot, SlotRequest};
use jobfence::schedulers::gridengine::amount::bytes;
use jobfence::schedulers::gridengine::complexes::{Complex, Counted, value_of};
use jobfence::schedulers::gridengine::spool::is_of_execd;

use crate::check::daemon::{DaemonKind, NotRun, SchedulerDaemon, not_ours, runs};
use crate::check::private::refuse_pids;
use crate::check::rows::Rows;
use crate::check::verdict::Verdict;
use crate::command::Failure;
use crate::schedulers::gridengine::again::refuses;
use crate::schedulers::slurm::pam;

/// The daemon of a node.
pub const EXECD: DaemonKind =
    DaemonKind { program: "sge_execd", variables: &["SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT", "SGE_EXECD_PORT"] };

/// The values that the load sensor reports, as in docs/install/gridengine.md.
pub const COMPLEXES: [&str; 5] =
    ["jobfence_threads", "jobfence_mem", "jobfence_vmem", "jobfence_free", "jobfence_pressure"];

/// Words of jsv_allowed_mod: changes by qalter(1) that make the JSV's notes wrong, and the qalter options that they allow.
const UNTRUE: [(&str, &str); 2] = [("v", "-v"), ("l_hard", "-l")];

/// The settings that name the daemons of qrsh and qlogin (sge_conf(5)), which the shepherd starts.
const DAEMONS: [&str; 3] = ["rsh_daemon", "rlogin_daemon", "qlogin_daemon"];

/// The words of execd_params that make execd itself move jobs into cgroups: those of 8.1.9, and of Open Cluster Scheduler.
const MOVES: [&str; 2] = ["USE_CGROUPS", "ENABLE_SYSTEMD"];

/// Says Grid Engine's state on this host. `verdict` gets each reason why no job would be fenced. `too_much` finds excess grants.
pub fn look(
    execd: &SchedulerDaemon,
    loaded: &Loaded,
    pam: (&Path, &str),
    rows: &mut Rows,
    too_much: impl Fn(&Config, &str) -> Result<Vec<String>, Failure>,
    verdict: &mut Verdict,
) {
    let why = "the shepherd writes down the pids of a job for execd, and execd would take them for others";
    refuse_pids(loaded, "Grid Engine", why, rows, verdict);
    let requests = CountedNames::from_config(loaded);
    let global = match execd.ask(&["qconf", "-sconf", "global"]) {
        Ok(global) => global,
        Err(why) => {
            rows.fault("gridengine", format!("what its configuration says is not known: {why}"));
            return verdict.unknown(
                "NO job is known to be fenced here: Grid Engine does not say what starts its jobs".to_owned(),
            );
        }
    };
    let host = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
    // A host need not have a configuration of its own.
    let local = execd.ask(&["qconf", "-sconf", &host]).unwrap_or_default();
    let value =
        |key: &str| value_of(&local, key).or_else(|| value_of(&global, key)).unwrap_or_else(|| "none".to_owned());
    let shepherd = value("shepherd_cmd");
    say_shepherd(&shepherd, rows, verdict);
    let jsv = value("jsv_url");
    let needs_jsv = requests.all().any(|(_, request)| !is_of_execd(&request.name));
    let found = runs(program_of(&jsv), "jsv");
    say_jsv(&jsv, (&found, needs_jsv), rows, verdict);
    if !rows.are_wanted() {
        return;
    }
    let mut remark = |line: &str| rows.remark("gridengine", line);
    if !matches!(found, Err(NotRun::Other(_))) && needs_jsv {
        changes(&value("jsv_allowed_mod")).iter().for_each(|line| remark(line));
    }
    DAEMONS.iter().filter_map(|key| begun_by(key, &value(key), pam)).for_each(|line| remark(&line));
    own_cgroups(&value("execd_params")).iter().for_each(|line| remark(line));
    if let Some(unit) = &execd.unit
        && let Ok(mode) = execd.ask(&["systemctl", "show", "--property=KillMode", "--value", unit])
    {
        ends_with_execd(unit, mode.trim()).iter().for_each(|line| remark(line));
    }
    let sensor = value("load_sensor");
    match sensor.split([',', ' ']).any(|program| runs(program, "host").is_ok()) {
        true => rows.fact("gridengine", format!("load_sensor is {sensor}")),
        false => remark(&format!("load_sensor is {sensor}: qmaster does not learn what jobs can have of this host")),
    }
    let mut remark = |line: &str| rows.remark("gridengine", line);
    to_do(execd, loaded).iter().for_each(|line| remark(line));
    let has_key = || loaded.sections().flat_map(|(_, settings)| settings).any(|one| one.key().name == "OnOutOfMemory");
    if loaded.config.on_out_of_memory.is_some() || has_key() {
        // Without any such host, qconf fails.
        let submit = execd.ask(&["qconf", "-ss"]).unwrap_or_default();
        let requests = &loaded.config.slot_memory;
        no_second_runs(&global, (&submit, &host), requests).iter().for_each(|line| remark(line));
    }
    let more =
        execd.ask(&["qconf", "-se", &host]).map_err(Into::into).and_then(|known| too_much(&loaded.config, &known));
    match more {
        Ok(lines) => lines.iter().for_each(|line| remark(line)),
        Err(why) => remark(&format!("whether qmaster grants more than this host has is not known: {why}")),
    }
}

/// Why no job of this host would be put back by `OnOutOfMemory`. `submit`: the hosts that may change jobs.
fn no_second_runs(global: &str, (submit, host): (&str, &str), requests: &[SlotRequest]) -> Option<String> {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let may_submit = submit.split_whitespace().any(|name| short(name) == short(host));
    let why = refuses(global)
        .or_else(|| (!may_submit).then(|| format!("{host} is no submit host (qconf -as {host})")))
        .or_else(|| {
            let says_it = |request: &SlotRequest| is_of_execd(&request.name);
            let text = "SlotMemory has no request that execd itself writes, such as h_rss or h_vmem";
            (!requests.iter().any(says_it)).then(|| text.to_owned())
        })?;
    Some(format!("OnOutOfMemory: no job is requeued, since {why}"))
}

/// Says what starts the jobs, and whether it is jobfence.
fn say_shepherd(shepherd: &str, rows: &mut Rows, verdict: &mut Verdict) {
    let why = not_ours(shepherd);
    let text = format!("shepherd_cmd is {shepherd}");
    if why.is_some() {
        rows.fault("gridengine", text)
    } else {
        rows.fact("gridengine", text)
    }
    if let Some(why) = why {
        verdict.no(format!("NO job would be fenced here: shepherd_cmd of Grid Engine is {shepherd}, {why}"));
    }
}

/// Says what the JSV is. `found`: whether it is jobfence, and whether it is needed.
fn say_jsv(jsv: &str, found: (&Result<(), NotRun>, bool), rows: &mut Rows, verdict: &mut Verdict) {
    match found {
        (Ok(()), _) => rows.fact("gridengine", format!("jsv_url is {jsv}")),
        (Err(NotRun::Missing), _) => {
            rows.fact(
                "gridengine",
                format!(
                    "jsv_url is {jsv}: no such file is here, so what it is can be seen on the host of qmaster alone"
                ),
            );
        }
        (Err(NotRun::Other(_)), false) => rows.remark(
            "gridengine",
            format!("jsv_url is {jsv}: only what execd says (h_vmem, h_rss) counts as memory, and no job has GPUs"),
        ),
        (Err(NotRun::Other(why)), true) => {
            rows.fault("gridengine", format!("jsv_url is {jsv}, {why}, and SlotCPUs, SlotMemory and SlotGPUs need it"));
            verdict.no(format!("NO job would be fenced here as configured: jsv_url of Grid Engine is {jsv}, {why}"));
        }
    }
}

/// What the site has to change in its complexes, or in jobfence.conf about them.
pub fn to_do(execd: &SchedulerDaemon, loaded: &Loaded) -> Vec<String> {
    let requests = CountedNames::from_config(loaded);
    match execd.ask(&["qconf", "-sc"]) {
        Ok(complexes) => of_complexes(&complexes, &requests),
        Err(why) => {
            let unknown = format!("which complexes there are is not known: {why}");
            [unknown].into_iter().chain(requests.unsaid()).collect()
        }
    }
}

/// The line about a daemon of qrsh or qlogin: whether its sessions stay in the job. `None` for those of Grid Engine itself.
fn begun_by(key: &str, daemon: &str, (directory, line): (&Path, &str)) -> Option<String> {
    let program = daemon.split_whitespace().next().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    if program != "sshd" {
        let is_known = ["builtin", "none", ""].contains(&program);
        return (!is_known)
            .then(|| format!("{key} is {daemon}: see with /proc/self/cgroup that what it begins is in its job"));
    }
    Some(match pam::moves_out(directory, program) {
        None => format!("{key} is {daemon}: what it begins is in its job"),
        Some(logind) => format!(
            "{key} is {daemon}: what it begins is NOT fenced, since {logind} moves it out; add as the last line of {}: {line} stay",
            directory.join(program).display()
        ),
    })
}

/// Lines about settings that make execd itself move jobs into cgroups.
pub fn own_cgroups(params: &str) -> Vec<String> {
    let words = params.split([',', ' ']).filter_map(|word| word.split_once('='));
    let is_off = |value: &str| ["0", "false", "no", "none"].iter().any(|off| value.eq_ignore_ascii_case(off));
    let is_one =
        |(key, value): &(&str, &str)| MOVES.iter().any(|moves| key.eq_ignore_ascii_case(moves)) && !is_off(value);
    let one = |(key, value)| {
        format!(
            "execd_params has {key}={value}: execd itself moves jobs into cgroups, and out of their fences; switch it off"
        )
    };
    words.filter(is_one).map(one).collect()
}

/// The line about a unit of execd whose stop or restart ends jobs.
fn ends_with_execd(unit: &str, mode: &str) -> Option<String> {
    (!["process", "none"].contains(&mode)).then(|| {
        format!(
            "KillMode of {unit} is {mode}: when it is stopped or started anew, each job here ends; set KillMode=process"
        )
    })
}

/// Lines about changes that users can make to a job without the JSV.
fn changes(allowed: &str) -> Vec<String> {
    let has = |wanted: &str| allowed.split([',', ' ']).any(|word| word == wanted);
    let one = |(word, option): (&str, &str)| {
        has(word).then(|| {
            format!("jsv_allowed_mod has {word}: after 'qalter {option}' a job has other limits than it was granted")
        })
    };
    UNTRUE.into_iter().filter_map(one).collect()
}

/// The program of a `jsv_url`, `TYPE:USER@PATH` (`jsv_url_parse` of `sge_jsv.c`).
fn program_of(jsv: &str) -> &str {
    let path = jsv.split_once(':').map_or(jsv, |(_, path)| path);
    path.split_once('@').map_or(path, |(_, path)| path)
}

/// The requests that count, by the keys that name them.
#[derive(Default)]
struct CountedNames {
    cpus: Vec<SlotRequest>,
    memory: Vec<SlotRequest>,
    gpus: Vec<SlotRequest>,
}

impl CountedNames {
    /// The requests that count for any job, also by a section.
    fn from_config(loaded: &Loaded) -> Self {
        let mut cpus = loaded.config.slot_cpus.clone();
        for request in loaded.one_by_one().flat_map(|candidate| candidate.config.slot_cpus) {
            if !cpus.contains(&request) {
                cpus.push(request);
            }
        }
        Self { cpus, memory: loaded.config.slot_memory.clone(), gpus: loaded.config.slot_gpus.clone() }
    }

    fn all(&self) -> impl Iterator<Item = (&'static str, &SlotRequest)> {
        let by_key = [("SlotCPUs", &self.cpus), ("SlotMemory", &self.memory), ("SlotGPUs", &self.gpus)];
        by_key.into_iter().flat_map(|(key, requests)| requests.iter().map(move |request| (key, request)))
    }

    /// Lines about requests that need qmaster's answer, for a host that may not ask it: neither admin nor submit host.
    fn unsaid(&self) -> Vec<String> {
        let of_qmaster = self.all().filter(|(_, request)| !is_of_execd(&request.name));
        let one = |(key, SlotRequest { name, per }): (&str, &SlotRequest)| {
            (*per == PerSlot::AsCounted).then(|| {
                format!(
                    "of what {name} is so much is not known here: make this host an admin or submit host, or write {key}={name}:slot, \
                     {name}:host or {name}:job"
                )
            })
        };
        of_qmaster.filter_map(one).collect()
    }
}

/// What is missing or wrong in the complexes, from the output of `qconf -sc`.
fn of_complexes(text: &str, requests: &CountedNames) -> Vec<String> {
    let complexes = Complex::all(text);
    let find = |name: &str| complexes.iter().find(|complex| complex.is_called(name));
    let mut said = Vec::new();
    let missing: Vec<&str> = COMPLEXES.into_iter().filter(|name| find(name).is_none()).collect();
    if !missing.is_empty() {
        said.push(format!(
            "complexes of the load sensor are missing, so their values are lost: {}",
            missing.join(", ")
        ));
    }
    for (key, request) in requests.all() {
        match find(&request.name) {
            None => said.push(format!("there is no complex {}: no job can ask for it", request.name)),
            Some(complex) => said.extend(of_counted(key, request, complex.counted)),
        }
    }
    said.extend(requests.memory.iter().filter_map(|request| of_default(&request.name, find(&request.name)?)));
    said.extend(unheard(
        &find,
        &requests.cpus,
        "a job that asks by it has the CPUs of its slots. Name it in SlotCPUs, too",
    ));
    said.extend(unheard(&find, &requests.memory, "a job that asks by it has no limit. Name it in SlotMemory, too"));
    // If SlotGPUs named both, a request by both names would count twice.
    said.extend(unheard(
        &find,
        &requests.gpus,
        "a job that asks by it has no GPU. Give the complex its name as the shortcut",
    ));
    said
}

/// Lines about a request that qmaster does not count, or counts otherwise than jobfence.conf says.
fn of_counted(key: &str, SlotRequest { name, per }: &SlotRequest, counted: Counted) -> Vec<String> {
    if counted == Counted::No {
        return vec![format!("{name} is no consumable: qmaster grants more of it than the host has")];
    }
    let of = match counted {
        Counted::Job => PerSlot::Job,
        Counted::Host => PerSlot::Host,
        _ => PerSlot::Slot,
    };
    let mut said = Vec::new();
    if ![of, PerSlot::AsCounted].contains(per) {
        let counted = counted.name();
        said.push(format!("{key} says another thing of {name} than its complex, which is a consumable {counted}"));
    }
    if counted == Counted::Job {
        let least = match key {
            "SlotCPUs" => "ZeroCPUs",
            "SlotMemory" => "MinRAMSpace",
            _ => return said,
        };
        said.push(format!(
            "{name} is a consumable JOB: qmaster debits it on the host of a job's script alone, and on other hosts the job has {least}"
        ));
    }
    said
}

/// The line about a consumable with the default 0, which execd makes the limit of a job that does not ask for it.
fn of_default(name: &str, complex: &Complex) -> Option<String> {
    let is_zero = is_of_execd(name) && bytes(&complex.default) == Some(Some(0));
    (is_zero && complex.counted != Counted::No && !complex.is_forced).then(|| {
        format!(
            "{name} has the default 0: a job that does not ask for it has no memory, and dies at once. \
             Give the complex another default, or make it FORCED"
        )
    })
}

/// Lines about shortcuts that a key does not name: users can ask by them, but the JSV notes only names in the key.
fn unheard<'a>(find: &impl Fn(&str) -> Option<&'a Complex>, requests: &[SlotRequest], so: &str) -> Vec<String> {
    let is_named = |name: &str| is_of_execd(name) || requests.iter().any(|request| request.name == name);
    let one = |request: &SlotRequest| {
        let shortcut = &find(&request.name)?.shortcut;
        (!is_named(shortcut)).then(|| format!("{} has the shortcut {shortcut}: {so}", request.name))
    };
    requests.iter().filter(|request| !is_of_execd(&request.name)).filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use jobfence::config::PerSlot;

    use super::*;

    #[test]
    fn what_keeps_jobs_from_a_second_run_is_said() {
        let named =
            |names: &[&str]| names.iter().map(|name| SlotRequest::new(name, PerSlot::AsCounted)).collect::<Vec<_>>();
        let said = |global: &str, submit: &str, names: &[&str]| {
            no_second_runs(global, (submit, "n1.cluster"), &named(names)).unwrap_or_default()
        };
        let (none, both) = ("jsv_url none\n", ["mem_free", "h_rss"]);
        assert_eq!(said(none, "login\nN1\n", &both), "");
        assert!(
            said("jsv_url script:/x\njsv_allowed_mod ac,h\n", "n1\n", &both).contains("jsv_allowed_mod has no l_hard")
        );
        assert!(said(none, "login\nn11\n", &both).contains("n1.cluster is no submit host (qconf -as n1.cluster)"));
        assert!(said(none, "n1\n", &["mem_free"]).contains("SlotMemory has no request that execd itself writes"));
    }

    #[test]
    fn a_unit_that_ends_jobs_with_execd_is_said() {
        let said = ends_with_execd("gridengine-exec.service", "control-group").unwrap();
        assert!(said.contains("gridengine-exec.service is control-group: "), "{said}");
        assert!(ends_with_execd("x.service", "mixed").is_some());
        assert_eq!(["process", "none"].map(|mode| ends_with_execd("x.service", mode)), [None, None]);
    }

    #[test]
    fn what_begins_sessions_and_moves_jobs_is_said() {
        let text = "execd_params                 ENABLE_ADDGRP_KILL=TRUE,USE_CGROUPS=systemd, \\\n                             \
                    KEEP_ACTIVE=ERROR\nrlogin_daemon                builtin\nqlogin_daemon  /usr/sbin/in.telnetd\n\
                    rsh_daemon                   /usr/sbin/sshd -i -o Banner=none\n";
        let temp = tempfile::tempdir().unwrap();
        let said = || -> Vec<String> {
            let value = |key: &str| value_of(text, key).unwrap_or_else(|| "none".to_owned());
            let begun = DAEMONS.iter().filter_map(|key| begun_by(key, &value(key), (temp.path(), "THE LINE")));
            begun.chain(own_cgroups(&value("execd_params"))).collect()
        };
        let sshd = "rsh_daemon is /usr/sbin/sshd -i -o Banner=none: what it begins is";
        let rest = [
            "qlogin_daemon is /usr/sbin/in.telnetd: see with /proc/self/cgroup that what it begins is in its job",
            "execd_params has USE_CGROUPS=systemd: execd itself moves jobs into cgroups, and out of their fences; switch it off",
        ];
        assert_eq!(said(), [format!("{sshd} in its job").as_str(), rest[0], rest[1]]);
        let service = temp.path().join("sshd");
        std::fs::write(&service, "session optional pam_systemd.so\n").unwrap();
        let moved = format!(
            "{sshd} NOT fenced, since pam_systemd ({0}:1) moves it out; add as the last line of {0}: THE LINE stay",
            service.display()
        );
        assert_eq!(said(), [moved.as_str(), rest[0], rest[1]]);
        std::fs::write(&service, "session optional pam_systemd.so\nsession required libjobfence.so stay\n").unwrap();
        assert_eq!(said(), [format!("{sshd} in its job").as_str(), rest[0], rest[1]]);
        for off in ["none", "USE_CGROUPS=false", "use_cgroups=0,KEEP_ACTIVE=USE_CGROUPS"] {
            assert!(own_cgroups(off).is_empty(), "{off}");
        }
    }

    #[test]
    fn what_qalter_may_not_change_is_said() {
        let [v, l_hard] = ["v: after 'qalter -v'", "l_hard: after 'qalter -l'"]
            .map(|what| format!("jsv_allowed_mod has {what} a job has other limits than it was granted"));
        assert_eq!(changes("ac,h,v,l_hard"), [v, l_hard.clone()]);
        assert_eq!(changes("ac, l_hard"), [l_hard]);
        for harmless in ["none", "ac,h,i,e,o,j,M,N,p,w", "l_soft,pe_min"] {
            assert!(changes(harmless).is_empty(), "{harmless}");
        }
    }

    #[test]
    fn what_a_job_has_that_asks_for_nothing_is_said() {
        let of = |row: &str| of_default(row.split(' ').next().unwrap(), &Complex::all(row)[0]);
        let dies = of("h_vmem h_vmem MEMORY <= YES YES 0 0").unwrap();
        assert!(dies.starts_with("h_vmem has the default 0: a job that does not ask for it has no memory"), "{dies}");
        for fine in [
            "h_vmem v MEMORY <= YES YES 1G 0",
            "h_vmem v MEMORY <= FORCED YES 0 0",
            "mem_free mf MEMORY <= YES YES 0 0",
            "mem_free mf MEMORY <= YES JOB 1G 0",
        ] {
            assert_eq!(of(fine), None, "{fine}");
        }
        assert_eq!(of("h_vmem v MEMORY <= YES NO 0 0"), None, "qmaster counts none");
    }

    #[test]
    fn what_qmaster_debits_where_is_said() {
        let requests = |cpus: &[(&str, PerSlot)]| CountedNames {
            cpus: cpus.iter().map(|(name, per)| SlotRequest::new(name, *per)).collect(),
            memory: vec![SlotRequest::new("mem", PerSlot::Slot)],
            gpus: Vec::new(),
        };
        let ours: String = COMPLEXES.map(|name| format!("{name} {name} MEMORY <= YES NO 0 0\n")).concat();
        let text =
            format!("{ours}mem mem MEMORY <= YES JOB 0 0\nthreads t INT <= YES JOB 0 0\nh h INT <= YES HOST 0 0\n");
        let job = "is a consumable JOB: qmaster debits it on the host of a job's script alone, and on other hosts the job has";
        let said = of_complexes(&text, &requests(&[("threads", PerSlot::AsCounted), ("h", PerSlot::Host)]));
        assert_eq!(
            said,
            [
                format!("threads {job} ZeroCPUs"),
                "SlotMemory says another thing of mem than its complex, which is a consumable JOB".to_owned(),
                format!("mem {job} MinRAMSpace"),
                "threads has the shortcut t: a job that asks by it has the CPUs of its slots. Name it in SlotCPUs, too"
                    .to_owned(),
            ]
        );
        let unsaid = requests(&[("threads", PerSlot::AsCounted), ("h_rss", PerSlot::AsCounted)]).unsaid();
        let name = "of what threads is so much is not known here: make this host an admin or submit host, or write SlotCPUs=threads:slot";
        assert!(unsaid.len() == 1 && unsaid[0].starts_with(name), "{unsaid:?}");
    }

    #[test]
    fn the_program_of_a_url_is_its_path() {
        for url in ["script:/a/jsv", "script:adm@/a/jsv", "/a/jsv"] {
            assert_eq!(program_of(url), "/a/jsv", "{url}");
        }
    }

    #[test]
    fn what_complexes_lack_is_said() {
        let ours: String = COMPLEXES.map(|name| format!("{name} {name} MEMORY <= YES NO 0 0\n")).concat();
        let text = format!("#name shortcut type relop requestable consumable default urgency\n{ours}");
        let requests = |names: &[&str]| -> Vec<SlotRequest> {
            names.iter().map(|name| SlotRequest::new(name, PerSlot::AsCounted)).collect()
        };
        let these = |memory: &[&str], gpus: &[&str]| CountedNames {
            memory: requests(memory),
            gpus: requests(gpus),
            ..CountedNames::default()
        };
        let said = |more: &str| of_complexes(&format!("{text}{more}"), &these(&["h_vmem"], &["gpu"]));
        let good = "h_vmem h_vmem MEMORY <= YES YES 200M 0\ngpu gpu INT <= YES JOB 0 0\n";
        assert!(said(good).is_empty(), "{:?}", said(good));
        let counted = "h_vmem is no consumable: qmaster grants more of it than the host has";
        assert_eq!(
            said("h_vmem h_vmem MEMORY <= YES NO 0 0\n"),
            [counted, "there is no complex gpu: no job can ask for it"]
        );
        let short = format!("{text}mem_free mf MEMORY <= YES YES 0 0\ngpu g INT <= YES YES 0 0\n");
        assert_eq!(
            of_complexes(&short, &these(&["mem_free"], &["gpu"])),
            [
                "mem_free has the shortcut mf: a job that asks by it has no limit. Name it in SlotMemory, too",
                "gpu has the shortcut g: a job that asks by it has no GPU. Give the complex its name as the shortcut",
            ]
        );
        let both = of_complexes(&short, &these(&["mem_free", "mf"], &[]));
        assert!(both.is_empty(), "{both:?}");
        let without = of_complexes(&text.replace("jobfence_free jobfence_free", "x x"), &CountedNames::default());
        assert_eq!(without, ["complexes of the load sensor are missing, so their values are lost: jobfence_free"]);
    }
}
