// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence enable` and `jobfence disable`, with a Slurm that is only configured: which files they change, and when none. With real jobs:
//! tests/slurm/suite/installed.py. With systemd: tests/vm/traces.py.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

mod common;
#[path = "common/slurm_site.rs"]
mod slurm_site;
use slurm_site::{LINE, Site};

/// Expects this status and output; after a failure no file may have changed.
fn says(site: &Site, arguments: &[&str], status: i32, part: &str) {
    let line = site.path("share/plugstack.conf");
    site.says(&[arguments, &["--line", line.to_str().unwrap()]].concat(), status, part);
}

#[test]
fn one_command_turns_it_on_and_one_off() {
    let Some(site) = Site::new("enable", "on-and-off") else { return };
    let before = site.files();
    says(&site, &["enable"], 0, "plugstack.conf.d/jobfence.conf: each step that begins from now on is fenced");
    assert_eq!(site.read(LINE), site.read("share/plugstack.conf"));
    let include = format!("include {}/*.conf\n", site.path("etc/plugstack.conf.d").display());
    assert!(site.read("etc/plugstack.conf").ends_with(&include));
    let names: Vec<_> = fs::read_dir(site.path("etc/plugstack.conf.d")).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
    let on = site.files();
    says(&site, &["enable"], 0, "enabled        already, by required ");
    assert_eq!(site.files(), on);
    assert!(site.path("run").is_dir());

    for _ in 0..2 {
        says(&site, &["disable"], 0, "no step is fenced; nothing of jobfence runs");
        assert_eq!(site.files(), before);
        assert!(!site.path("run").exists(), "RunDir is left");
    }

    // What 'jobfence hold' wrote is removed, too, and nothing else.
    let config = site.read("etc/jobfence.conf") + &format!("MetricsFile={}\n", site.path("metrics/x.prom").display());
    site.write("etc/jobfence.conf", &config);
    site.write("run-series/0-0123456789abcdef.json", "{}");
    site.write("run-series/0-0123456789abcdef.json.new", "{}");
    site.write("metrics/x.prom", "# HELP jobfence_jobs Jobs.\njobfence_jobs 0\n");
    says(&site, &["enable"], 0, "enabled");
    says(&site, &["disable"], 0, "no step is fenced; nothing of jobfence runs");
    assert!(!site.path("run-series").exists() && !site.path("metrics/x.prom").exists(), "what it has written is left");
    site.write("metrics/x.prom", "# HELP other_jobs Jobs.\n");
    says(&site, &["enable"], 0, "enabled");
    says(&site, &["disable"], 0, "x.prom is no file of jobfence's, and stays");
    assert_eq!(site.read("metrics/x.prom"), "# HELP other_jobs Jobs.\n");
    assert!(!Path::new("/sys/fs/cgroup/cpu").join(&site.base.name).exists());
    assert!(!Path::new("/sys/fs/cgroup").join(&site.base.name).exists());
}

/// A package of the plugin alone is removed like this, while jobs of another scheduler run. What fails then must not keep it.
#[test]
fn what_is_left_does_not_keep_the_line() {
    let Some(site) = Site::new("enable", "left") else { return };
    let before = site.files();
    says(&site, &["enable"], 0, "enabled");
    says(
        &site,
        &["disable", "--keep-service"],
        0,
        "no step of Slurm is fenced; jobfence.service and what it needs stay",
    );
    assert_eq!(site.files(), before);
    assert!(site.path("run").is_dir(), "RunDir is gone");

    says(&site, &["enable"], 0, "enabled");
    fs::remove_dir_all(site.path("run")).unwrap();
    fs::write(site.path("run"), "").unwrap();
    says(&site, &["disable"], 3, "no new step is fenced, but something is left: ");
    assert_eq!(site.files(), before);
}

#[test]
fn nothing_is_activated_where_jobs_would_be_refused() {
    let Some(site) = Site::new("enable", "refused") else { return };
    site.write("etc/plugstack.conf", &format!("include {}/*\n", site.path("etc/plugstack.conf.d").display()));
    let right = site.read("etc/jobfence.conf");
    for (mistake, said) in [
        ("MaxProceses=3\n", "jobfence.conf:3:1: found \"MaxProceses\""),
        ("IOMax=\"/nonexistent/disk rbps=1M\"\n", "NO job would be fenced here"),
    ] {
        site.write("etc/jobfence.conf", &format!("{right}{mistake}"));
        says(&site, &["enable"], 1, said);
        assert!(!site.path(LINE).exists());
    }
    site.write("etc/jobfence.conf", &right);
    // The line's arguments count, too.
    let line = site.read("share/plugstack.conf");
    site.write("share/plugstack.conf", &format!("{} Mode=enforced\n", line.trim_end()));
    says(&site, &["enable"], 1, "expected Mode to be enforce, observe or off");
    site.write("share/plugstack.conf", &line.replace("libjobfence.so", "nowhere/libjobfence.so"));
    says(&site, &["enable"], 1, "cannot open shared object file: No such file or directory");
    site.write("share/plugstack.conf", "# none\n");
    says(&site, &["enable"], 1, "loads libjobfence.so: install jobfence, or name the file with --line");
    site.write("share/plugstack.conf", &line);
    fs::rename(site.path("etc/slurm.conf"), site.path("slurm.conf")).unwrap();
    if !Path::new("/etc/slurm/slurm.conf").exists() {
        says(&site, &["enable"], 1, "slurm.conf was not found: set SLURM_CONF");
    }
    fs::rename(site.path("slurm.conf"), site.path("etc/slurm.conf")).unwrap();
    says(&site, &["enable"], 0, "enabled");
    // If jobfence is on, it stays on, whatever the check says later.
    site.write("etc/jobfence.conf", &format!("{right}MaxProceses=3\n"));
    says(&site, &["enable"], 1, "the plugin stays on, by required");
    says(&site, &["disable"], 0, "going on with the default RunDir and CgroupBase");
    assert!(!site.path(LINE).exists());
}

#[test]
fn plugstack_conf_is_the_administrators() {
    let Some(site) = Site::new("enable", "include") else { return };
    let theirs = "# ours\noptional another.so";
    site.write("etc/really.conf", theirs);
    fs::set_permissions(site.path("etc/really.conf"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("really.conf", site.path("etc/plugstack.conf")).unwrap();
    let before = site.files();
    let include = format!("include {}/*.conf", site.path("etc/plugstack.conf.d").display());
    says(&site, &["enable"], 1, &format!("does not include the plugin's line. Add to it: {include} (or run"));
    says(&site, &["enable", "--write-include"], 0, &include);
    let written = site.read("etc/really.conf");
    assert!(written.starts_with(&format!("{theirs}\n#")) && written.ends_with(&format!("\n{include}\n")), "{written}");
    assert!(site.path("etc/plugstack.conf").is_symlink());
    // Other plugins may rely on it by now.
    site.write("etc/plugstack.conf.d/theirs.conf", "");
    says(&site, &["disable"], 0, "disabled");
    assert_eq!(site.read("etc/really.conf"), written);
    says(&site, &["enable"], 0, "enabled");
    fs::remove_file(site.path("etc/plugstack.conf.d/theirs.conf")).unwrap();
    says(&site, &["disable"], 0, "disabled");
    assert_eq!(site.read("etc/really.conf"), format!("{theirs}\n"));
    site.write("etc/really.conf", theirs);
    assert_eq!(site.files(), before);
}

#[test]
fn a_line_that_an_administrator_has_changed_stays() {
    let Some(site) = Site::new("enable", "changed") else { return };
    says(&site, &["enable"], 0, "enabled");
    let changed = format!("{} CPUQuotaPercent=90\n", site.read(LINE).trim_end());
    site.write(LINE, &changed);
    says(&site, &["enable"], 0, "jobfence.conf was changed, and stays as it is; the line of this release is in");
    assert_eq!(site.read(LINE), changed);
    says(&site, &["disable"], 0, "the changed line is in");
    assert_eq!(site.read("etc/jobfence.plugstack.disabled"), changed);
    assert!(!site.path("etc/plugstack.conf.d").exists());
    says(&site, &["enable"], 0, "enabled");
    assert_eq!(site.read(LINE), changed);
    assert!(!site.path("etc/jobfence.plugstack.disabled").exists());
    // A line elsewhere must not be removed by jobfence, and as long as it is there, neither is what it needs.
    fs::rename(site.path(LINE), site.path("etc/plugstack.conf.d/50-fence.conf")).unwrap();
    says(&site, &["enable"], 0, "50-fence.conf:2");
    says(&site, &["disable"], 1, "jobfence is still on, by another line: required");
    assert!(site.path("run").is_dir());
}

#[test]
fn files_that_the_controller_serves_are_changed_there() {
    let Some(site) = Site::new("enable", "fetched") else { return };
    // As slurmd makes it, below its spool directory.
    fs::create_dir(site.path("etc/conf-cache")).unwrap();
    fs::rename(site.path("etc/slurm.conf"), site.path("etc/conf-cache/slurm.conf")).unwrap();
    symlink("conf-cache/slurm.conf", site.path("etc/slurm.conf")).unwrap();
    let fetched = site.path("etc/conf-cache/slurm.conf");
    let with = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jobfence"));
        let command = command.args(arguments).arg("--line").arg(site.path("share/plugstack.conf"));
        let done = command.env("SLURM_CONF", &fetched).output().unwrap();
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let before = site.files();
    for arguments in [&["enable"][..], &["enable", "--write-include"]] {
        let (status, said) = with(arguments);
        assert!(
            status == Some(1) && said.contains("Add there, in the controller's plugstack.conf: include "),
            "{said}"
        );
        assert_eq!(site.files(), before);
    }
    let include = format!("include {}/*.conf\n", site.path("etc/plugstack.conf.d").display());
    site.write("etc/conf-cache/plugstack.conf", &include);
    assert_eq!(with(&["enable"]).0, Some(0));
    assert!(site.path(LINE).exists());
    assert_eq!(with(&["disable"]).0, Some(0));
    assert_eq!(site.read("etc/conf-cache/plugstack.conf"), include);
    assert!(!site.path(LINE).exists());
}
