// SPDX-License-Identifier: GPL-2.0-or-later
//! Whether the execd that runs here starts jobs by this program, and what is missing of the rest.

use std::path::Path;

use jobfence::config::{Config, SlotRequest};
use jobfence::scheduler::gridengine::spool::{OF_EXECD, bytes};

use super::daemon::{SchedulerDaemon, not_ours};
use super::verdict::Verdict;
use crate::host::too_much;
use crate::pam;

/// What the load sensor reports, as in docs/install/gridengine.md.
const COMPLEXES: [&str; 5] =
    ["jobfence_threads", "jobfence_mem", "jobfence_vmem", "jobfence_free", "jobfence_pressure"];

/// The words of jsv_allowed_mod by which qalter(1) makes what our JSV has noted untrue, and which of its options they stand for.
const UNTRUE: [(&str, &str); 2] = [("v", "-v"), ("l_hard", "-l")];

/// What the shepherd starts for qrsh and qlogin (sge_conf(5)).
const DAEMONS: [&str; 3] = ["rsh_daemon", "rlogin_daemon", "qlogin_daemon"];

/// The words of execd_params by which execd itself moves jobs into cgroups: those of 8.1.9, and of Open Cluster Scheduler.
const MOVES: [&str; 2] = ["USE_CGROUPS", "ENABLE_SYSTEMD"];

/// Says it, and why no job would be fenced, if so.
pub(super) fn look(execd: &SchedulerDaemon, config: &Config, pam: (&Path, &str), verdict: &mut Verdict) {
    let global = match execd.ask(&["qconf", "-sconf", "global"]) {
        Ok(global) => global,
        Err(why) => {
            say(&format!("what its configuration says is not known: {why}"));
            return verdict
                .no("NO job is known to be fenced here: Grid Engine does not say what starts its jobs".to_owned());
        }
    };
    let host = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
    // A host without a configuration of its own is no mistake.
    let local = execd.ask(&["qconf", "-sconf", &host]).unwrap_or_default();
    let value =
        |key: &str| value_of(&local, key).or_else(|| value_of(&global, key)).unwrap_or_else(|| "none".to_owned());
    let shepherd = value("shepherd_cmd");
    say(&format!("shepherd_cmd is {shepherd}"));
    if let Some(why) = not_ours(&shepherd) {
        verdict.no(format!("NO job would be fenced here: shepherd_cmd of Grid Engine is {shepherd}, {why}"));
    }
    let jsv = value("jsv_url");
    let has_jsv = jsv.contains("jobfence");
    let needs_jsv = !config.slot_gpus.is_empty() || config.slot_memory.iter().any(|memory| !is_of_execd(&memory.name));
    match (has_jsv, needs_jsv) {
        (true, _) => say(&format!("jsv_url is {jsv}")),
        (false, false) => say(&format!(
            "jsv_url is {jsv}: only what execd says (h_vmem, h_rss) counts as memory, and no job has GPUs"
        )),
        (false, true) => {
            say(&format!("jsv_url is {jsv}, and SlotMemory and SlotGPUs need 'jobfence jsv' there"));
            verdict.no(format!("NO job would be fenced here as configured: jsv_url of Grid Engine is {jsv}"));
        }
    }
    if has_jsv && needs_jsv {
        changes(&value("jsv_allowed_mod")).iter().for_each(|line| say(line));
    }
    DAEMONS.iter().filter_map(|key| begun_by(key, &value(key), pam)).for_each(|line| say(&line));
    own_cgroups(&value("execd_params")).iter().for_each(|line| say(line));
    let sensor = value("load_sensor");
    match sensor.contains("jobfence") {
        true => say(&format!("load_sensor is {sensor}")),
        false => say(&format!("load_sensor is {sensor}: qmaster does not learn what jobs can have of this host")),
    }
    match execd.ask(&["qconf", "-sc"]) {
        Ok(complexes) => {
            of_complexes(&complexes, &config.slot_memory, &config.slot_gpus).iter().for_each(|line| say(line));
        }
        Err(why) => say(&format!("which complexes there are is not known: {why}")),
    }
    let more = execd.ask(&["qconf", "-se", &host]).map_err(Into::into).and_then(|known| too_much(config, &known));
    match more {
        Ok(lines) => lines.iter().for_each(|line| say(line)),
        Err(why) => say(&format!("whether qmaster grants more than this host has is not known: {why}")),
    }
}

fn say(what: &str) {
    println!("gridengine     {what}");
}

/// What is said of a daemon that begins sessions by PAM; nothing of one that does not.
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

/// The words by which execd itself has cgroups for jobs, where they are switched on.
fn own_cgroups(params: &str) -> Vec<String> {
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

/// What users can change of a job behind the JSV's back.
fn changes(allowed: &str) -> Vec<String> {
    let has = |wanted: &str| allowed.split([',', ' ']).any(|word| word == wanted);
    let one = |(word, option): (&str, &str)| {
        has(word).then(|| {
            format!("jsv_allowed_mod has {word}: after 'qalter {option}' a job has other limits than it was granted")
        })
    };
    UNTRUE.into_iter().filter_map(one).collect()
}

/// What is missing of the complexes, as `qconf -sc` prints them.
fn of_complexes(text: &str, memory: &[SlotRequest], gpus: &[SlotRequest]) -> Vec<String> {
    let rows: Vec<Vec<&str>> =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace().collect()).collect();
    let find = |name: &str| rows.iter().find(|row| row.get(..2).is_some_and(|names| names.contains(&name)));
    let mut said = Vec::new();
    let missing: Vec<&str> = COMPLEXES.into_iter().filter(|name| find(name).is_none()).collect();
    if !missing.is_empty() {
        said.push(format!(
            "complexes of the load sensor are missing, so their values are lost: {}",
            missing.join(", ")
        ));
    }
    for SlotRequest { name, .. } in memory.iter().chain(gpus) {
        match find(name).map(|row| row.get(5).copied().unwrap_or_default()) {
            None => said.push(format!("there is no complex {name}: no job can ask for it")),
            Some(consumable) if consumable.eq_ignore_ascii_case("no") => {
                said.push(format!("{name} is no consumable: qmaster grants more of it than the host has"));
            }
            Some(_) => {}
        }
    }
    said.extend(memory.iter().filter_map(|request| find(&request.name).and_then(|row| of_default(&request.name, row))));
    said.extend(unheard(&find, memory, "a job that asks by it has no limit. Name it in SlotMemory, too"));
    // Two names of the same GPUs would be counted twice.
    said.extend(unheard(&find, gpus, "a job that asks by it has no GPU. Give the complex its name as the shortcut"));
    said
}

/// What a job has that does not ask for this consumable: qmaster counts the complex's default then.
fn of_default(name: &str, row: &[&str]) -> Option<String> {
    let [_, _, _, _, requestable, consumable, default, ..] = row else { return None };
    if consumable.eq_ignore_ascii_case("no") || requestable.eq_ignore_ascii_case("forced") {
        return None;
    }
    match (is_of_execd(name), bytes(default)) {
        (true, Some(Some(0))) => Some(format!(
            "{name} has the default 0: a job that does not ask for it has no memory, and dies at once. \
             Give the complex another default, or make it FORCED"
        )),
        (false, Some(Some(1..))) => Some(format!(
            "{name} has the default {default}, which no JSV hears: a job that does not ask for it has no limit. \
             Set DefaultRAMSpace={default}, or make the complex FORCED"
        )),
        _ => None,
    }
}

/// Whether execd says itself how much of it a job has.
fn is_of_execd(name: &str) -> bool {
    OF_EXECD.contains(&name)
}

/// The JSV hears the words of users, who can ask by a shortcut.
fn unheard<'a>(find: &impl Fn(&str) -> Option<&'a Vec<&'a str>>, requests: &[SlotRequest], so: &str) -> Vec<String> {
    let is_named = |name: &str| is_of_execd(name) || requests.iter().any(|request| request.name == name);
    let one = |request: &SlotRequest| {
        let shortcut = find(&request.name)?.get(1).filter(|shortcut| !is_named(shortcut))?;
        Some(format!("{} has the shortcut {shortcut}: {so}", request.name))
    };
    requests.iter().filter(|request| !is_of_execd(&request.name)).filter_map(one).collect()
}

/// The value of a key of `qconf -sconf`, also one that goes on in the next line.
pub fn value_of(text: &str, key: &str) -> Option<String> {
    let text = text.replace("\\\n", " ");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let found = text.lines().map(words).find(|words| words.first().is_some_and(|first| first == key))?;
    Some(found.get(1..)?.join(" "))
}

#[cfg(test)]
mod tests {
    use jobfence::config::PerSlot;

    use super::*;

    #[test]
    fn a_value_of_qconf_may_have_several_lines() {
        let text =
            "#global:\nshepherd_cmd                 /usr/sbin/jobfence\nload_sensor  /a,\\\n             /b\nx\n";
        assert_eq!(value_of(text, "shepherd_cmd").as_deref(), Some("/usr/sbin/jobfence"));
        assert_eq!(value_of(text, "load_sensor").as_deref(), Some("/a, /b"));
        assert_eq!(value_of(text, "jsv_url"), None);
        assert_eq!(value_of(text, "x").as_deref(), Some(""));
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
        let of = |row: &str| of_default(row.split(' ').next().unwrap(), &row.split(' ').collect::<Vec<_>>());
        let dies = of("h_vmem h_vmem MEMORY <= YES YES 0 0").unwrap();
        assert!(dies.starts_with("h_vmem has the default 0: a job that does not ask for it has no memory"), "{dies}");
        let free = of("mem_free mf MEMORY <= YES JOB 1G 0").unwrap();
        assert!(free.contains("Set DefaultRAMSpace=1G, or"), "{free}");
        for fine in [
            "h_vmem v MEMORY <= YES YES 1G 0",
            "h_vmem v MEMORY <= FORCED YES 0 0",
            "mem_free mf MEMORY <= YES YES 0 0",
        ] {
            assert_eq!(of(fine), None, "{fine}");
        }
        assert_eq!(of("h_vmem v MEMORY <= YES NO 0 0"), None, "qmaster counts none");
    }

    #[test]
    fn what_complexes_lack_is_said() {
        let ours: String = COMPLEXES.map(|name| format!("{name} {name} MEMORY <= YES NO 0 0\n")).concat();
        let text = format!("#name shortcut type relop requestable consumable default urgency\n{ours}");
        let requests = |names: &[&str]| -> Vec<SlotRequest> {
            names.iter().map(|name| SlotRequest::of(name, PerSlot::AsCounted)).collect()
        };
        let said = |more: &str| of_complexes(&format!("{text}{more}"), &requests(&["h_vmem"]), &requests(&["gpu"]));
        let good = "h_vmem h_vmem MEMORY <= YES YES 200M 0\ngpu gpu INT <= YES JOB 0 0\n";
        assert!(said(good).is_empty(), "{:?}", said(good));
        let counted = "h_vmem is no consumable: qmaster grants more of it than the host has";
        assert_eq!(
            said("h_vmem h_vmem MEMORY <= YES NO 0 0\n"),
            [counted, "there is no complex gpu: no job can ask for it"]
        );
        let short = format!("{text}mem_free mf MEMORY <= YES YES 0 0\ngpu g INT <= YES YES 0 0\n");
        assert_eq!(
            of_complexes(&short, &requests(&["mem_free"]), &requests(&["gpu"])),
            [
                "mem_free has the shortcut mf: a job that asks by it has no limit. Name it in SlotMemory, too",
                "gpu has the shortcut g: a job that asks by it has no GPU. Give the complex its name as the shortcut",
            ]
        );
        let both = of_complexes(&short, &requests(&["mem_free", "mf"]), &[]);
        assert!(both.is_empty(), "{both:?}");
        let without = of_complexes(&text.replace("jobfence_free jobfence_free", "x x"), &[], &[]);
        assert_eq!(without, ["complexes of the load sensor are missing, so their values are lost: jobfence_free"]);
    }
}
