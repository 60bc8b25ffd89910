// SPDX-License-Identifier: GPL-2.0-or-later
//! `jobfence setup`, with a Slurm that is only configured: what it changes, that it takes back exactly that, and that it may die at any
//! moment. With real jobs: tests/slurm/suite/installed.py.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

// All of these two is used by tests/faults.rs.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[allow(dead_code)]
#[path = "faults/calls.rs"]
mod calls;
mod common;
#[path = "common/slurm_site.rs"]
mod slurm_site;
use slurm_site::{LINE, Site};
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[allow(dead_code)]
#[path = "faults/trace.rs"]
mod trace;

/// A site of which this host is the node.
fn site(test: &str) -> Option<Site> {
    let site = Site::new("setup", test)?;
    let host = nix::unistd::gethostname().unwrap();
    let node = format!("NodeName={}\n", host.to_str().unwrap().split('.').next().unwrap());
    site.write("etc/slurm.conf", &(site.read("etc/slurm.conf") + &node));
    site.write("var/nothing", "");
    Some(site)
}

fn arguments(site: &Site, more: &[&str]) -> Vec<String> {
    let [journal, data] = ["var/setup", "share"].map(|name| site.path(name).to_str().unwrap().to_owned());
    let words = ["setup", "--any-program", "--scheduler", "slurm", "--journal", &journal, "--data", &data];
    words.iter().chain(more).map(|word| (*word).to_owned()).collect()
}

/// Expects this status and output; after a failure no file may have changed.
fn says(site: &Site, more: &[&str], status: i32, part: &str) {
    let arguments = arguments(site, more);
    site.says(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), status, part);
}

#[test]
fn one_command_sets_it_up_and_takes_it_back() {
    let Some(site) = site("whole") else { return };
    let theirs = "# of this site\noptional another.so";
    site.write("etc/really.conf", theirs);
    fs::set_permissions(site.path("etc/really.conf"), fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(site.path("etc/really.conf"), Some(4242), Some(4243)).unwrap();
    symlink("really.conf", site.path("etc/plugstack.conf")).unwrap();
    let before = site.files();

    let include = format!("include {}/*.conf\n", site.path("etc/plugstack.conf.d").display());
    says(&site, &["--dry-run"], 2, &format!("+{include}"));
    says(&site, &["--dry-run"], 2, "+++ /");
    assert_eq!(site.files(), before);
    assert!(!site.path("var/setup").exists());

    says(&site, &[], 2, "set up         Slurm: ");
    let on = site.files();
    assert_eq!(site.read(LINE), site.read("share/plugstack.conf"));
    assert!(site.read("etc/really.conf").ends_with(&include) && site.path("etc/plugstack.conf").is_symlink());
    let found = fs::metadata(site.path("etc/really.conf")).unwrap();
    let owner = |of: &fs::Metadata| (std::os::unix::fs::MetadataExt::uid(of), std::os::unix::fs::MetadataExt::gid(of));
    assert_eq!((found.permissions().mode() & 0o7777, owner(&found)), (0o640, (4242, 4243)));
    assert_eq!(fs::metadata(site.path("var/setup")).unwrap().permissions().mode() & 0o7777, 0o700);

    says(&site, &["--dry-run"], 0, "unchanged");
    says(&site, &[], 0, "unchanged");
    assert_eq!(site.files(), on);

    says(&site, &["--undo", "--dry-run"], 2, "3 steps would be undone");
    assert_eq!(site.files(), on);
    says(&site, &["--undo"], 2, "undone         Slurm is as it was before");
    assert_eq!(site.files(), before);
    assert_eq!(owner(&fs::metadata(site.path("etc/really.conf")).unwrap()), (4242, 4243));
    assert!(!site.path("run").exists() && !site.path("var/setup").exists());
    says(&site, &["--undo"], 0, "unchanged");
}

#[test]
fn what_somebody_has_changed_since_stays() {
    let Some(site) = site("changed") else { return };
    site.write("etc/plugstack.conf", "# of this site\n");
    says(&site, &[], 2, "set up");
    let changed = site.read("etc/plugstack.conf") + "optional another.so\n";
    site.write("etc/plugstack.conf", &changed);
    let (status, said) = site.with(&arguments(&site, &["--undo"]).iter().map(String::as_str).collect::<Vec<_>>());
    assert!(status == Some(1) && said.contains("plugstack.conf was changed after jobfence setup, and stays"), "{said}");
    // The rest is undone all the same.
    assert_eq!(site.read("etc/plugstack.conf"), changed);
    assert!(!site.path("etc/plugstack.conf.d").exists());
    let kept = said.split_whitespace().find(|word| word.ends_with(".before")).unwrap().to_owned();
    assert_eq!(fs::read_to_string(kept).unwrap(), "# of this site\n");
    // When it is as it was before, nothing is left to undo.
    site.write("etc/plugstack.conf", "# of this site\n");
    says(&site, &["--undo"], 2, "undone");
    assert!(!site.path("var/setup").exists());
}

#[test]
fn nothing_is_changed_where_jobs_would_be_refused() {
    let Some(site) = site("refused") else { return };
    let right = site.read("etc/jobfence.conf");
    site.write("etc/jobfence.conf", &format!("{right}MaxProceses=3\n"));
    says(&site, &[], 1, "nothing was changed");
    site.write("etc/jobfence.conf", &right);
    let line = site.read("share/plugstack.conf");
    site.write("share/plugstack.conf", "# none\n");
    says(&site, &[], 1, "to do          Slurm: there is no line for Slurm in");
    site.write("share/plugstack.conf", &line);
    // A link of a user's is not followed.
    site.write("home/theirs", "");
    symlink(site.path("home/theirs"), site.path("etc/plugstack.conf")).unwrap();
    std::os::unix::fs::lchown(site.path("etc/plugstack.conf"), Some(4242), None).unwrap();
    says(&site, &[], 1, "change it by hand");
    fs::remove_file(site.path("etc/plugstack.conf")).unwrap();
    // 2 would say that something was changed.
    says(&site, &["--dryrun"], 1, "unexpected argument '--dryrun'");
    says(&site, &["--scheduler", "torque"], 1, "is none of slurm, gridengine, openpbs, htcondor");
}

#[test]
fn the_controllers_plugstack_conf_is_not_written() {
    let Some(site) = site("configless") else { return };
    // As slurmd keeps what it fetches, in SlurmdSpoolDir.
    let cache = |name: &str| format!("etc/conf-cache/{name}");
    site.write(&cache("slurm.conf"), &site.read("etc/slurm.conf"));
    site.write(&cache("plugstack.conf"), "# of the controller\n");
    let before = site.files();
    let sets_up = |status: i32, part: &str| {
        let mut command = site.command(&[]);
        let done =
            command.args(arguments(&site, &[])).env("SLURM_CONF", site.path(&cache("slurm.conf"))).output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.code() == Some(status) && said.contains(part), "{:?}: {said}", done.status);
    };
    sets_up(
        1,
        "the controller serves a plugstack.conf that does not include this node's line. Add to the controller's: include /",
    );
    assert_eq!(site.files(), before);
    assert!(!site.path("var/setup").exists());
}

#[test]
fn the_line_of_another_release_is_taken_out() {
    let Some(site) = site("release") else { return };
    site.write("etc/plugstack.conf", "# of this site\n");
    let before = site.files();
    says(&site, &[], 2, "set up");
    // As a package of another release, or 'make install', replaces both.
    let newer = site.read("share/plugstack.conf").replace("# installed", "# installed later");
    site.write("share/plugstack.conf", &newer);
    site.write(LINE, &newer);
    says(&site, &["--undo"], 2, "undone         Slurm is as it was before");
    assert!(!site.path(LINE).exists());
    site.write("share/plugstack.conf", &newer.replace("# installed later", "# installed"));
    assert_eq!(site.files(), before);
    // With a change of the administrator's it stays.
    says(&site, &[], 2, "set up");
    site.write("share/plugstack.conf", &newer);
    site.write(LINE, &(newer.clone() + "# of this site\n"));
    let (status, said) = site.with(&arguments(&site, &["--undo"]).iter().map(String::as_str).collect::<Vec<_>>());
    assert!(status == Some(1) && said.contains("jobfence.conf was changed after jobfence setup, and stays"), "{said}");
    assert!(site.path(LINE).exists());
}

#[test]
fn a_line_of_another_installation_or_hand_stays() {
    let Some(site) = site("there") else { return };
    site.write("etc/plugstack.conf", &site.read("share/plugstack.conf"));
    let before = site.files();
    says(&site, &[], 0, "Slurm loads the plugin already");
    assert_eq!(site.files(), before);
    // A package that has the plugin stays, then, where slurmd can start jobs.
    let undo = |status: i32, part: &str| {
        let words = arguments(&site, &["--undo"]);
        let mut command = site.command(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let done = command.env("PATH", site.path("sbin")).output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.code() == Some(status) && said.contains(part), "{:?}: {said}", done.status);
        assert_eq!(site.files(), before);
    };
    site.write("sbin/slurmd", "#!/bin/sh\n");
    fs::set_permissions(site.path("sbin/slurmd"), fs::Permissions::from_mode(0o755)).unwrap();
    undo(3, "to do          Slurm still starts jobs of this node by jobfence, so leave its programs here: required /");
}

/// A host whose MoM has the hook of a server elsewhere.
#[test]
fn a_host_that_gets_the_hook_from_elsewhere() {
    let Some(site) = site("mom") else { return };
    let tools = [("sbin/pbs_mom", "echo pbs_version = 23.06.06"), ("bin/pbs_python", "")];
    for (name, script) in tools {
        site.write(name, &format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(site.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let conf = format!(
        "PBS_EXEC={0}\nPBS_HOME={0}/pbs\nPBS_SERVER=elsewhere\nPBS_START_MOM=1\nPBS_START_SERVER=0\n",
        site.path("").display().to_string().trim_end_matches('/')
    );
    site.write("etc/pbs.conf", &conf);
    site.write("pbs/mom_priv/hooks/other.PY", "import pbs\n");
    let says = |words: &[&str], status: i32, part: &str| {
        let journal = site.path("var/setup").display().to_string();
        let mut command = site.command(&["setup", "--any-program", "--scheduler", "openpbs", "--journal", &journal]);
        let done = command.args(words).env("PBS_CONF_FILE", site.path("etc/pbs.conf")).output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.code() == Some(status) && said.contains(part), "{words:?}: {:?}: {said}", done.status);
    };
    says(&["--dry-run"], 0, "unchanged      nothing is to be done but what stands above ('by hand')");
    says(&["--undo"], 0, "unchanged      nothing is to be done\n");
    site.write("pbs/mom_priv/hooks/jobfence.HK", "event=execjob_begin\n");
    site.write("pbs/mom_priv/hooks/jobfence.PY", "self.so.jobfence_abi_version\n");
    for words in [&["--undo"][..], &["--undo", "--dry-run"]] {
        says(
            words,
            3,
            "OpenPBS still starts jobs of this node by jobfence, so leave its programs here: MoM has the hook",
        );
    }
    // Without its programs no job begins here.
    fs::remove_file(site.path("sbin/pbs_mom")).unwrap();
    says(&["--undo"], 0, "unchanged");
}

/// The host of the server, on which no job runs.
#[test]
fn a_host_of_the_server_alone() {
    let Some(site) = site("server") else { return };
    let top = site.path("").display().to_string().trim_end_matches('/').to_owned();
    let qmgr = format!("#!/bin/sh\necho \"$2\" >>{top}/called\n[ ! -e {top}/gone ]\n");
    site.write("bin/qmgr", &qmgr);
    fs::set_permissions(site.path("bin/qmgr"), fs::Permissions::from_mode(0o755)).unwrap();
    site.write("sbin/nothing", "");
    for name in ["jobfence.HK", "jobfence.CF", "jobfence.py"] {
        let text = fs::read_to_string(format!("{}/hooks/pbs/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        site.write(&format!("share/pbs/{name}"), &text);
    }
    site.write("pbs/server_priv/hooks/nothing", "");
    site.write("etc/pbs.conf", &format!("PBS_EXEC={top}\nPBS_HOME={top}/pbs\nPBS_SERVER=here\nPBS_START_SERVER=1\n"));
    let says = |words: &[&str], status: i32, part: &str| {
        let [journal, data] = ["var/setup", "share"].map(|name| site.path(name).display().to_string());
        let words = [&["setup", "--any-program", "--scheduler", "openpbs", "--central"], words].concat();
        let mut command = site.command(&words);
        command.args(["--journal", &journal, "--data", &data]).env("PBS_CONF_FILE", site.path("etc/pbs.conf"));
        let done = command.output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.code() == Some(status) && said.contains(part), "{words:?}: {:?}: {said}", done.status);
        assert!(!said.contains("verdict"), "{said}");
    };
    says(&[], 2, "set up         OpenPBS: done; no job runs on this host");
    says(&["--undo"], 2, "undone         OpenPBS is as it was before");
    assert!(site.read("called").ends_with("delete hook jobfence\n"), "{}", site.read("called"));
    says(&[], 2, "set up");
    // The administrator has deleted the hook by hand.
    site.write("gone", "");
    says(&["--undo"], 2, "create hook jobfence': somebody has taken it back already");
    says(&["--undo"], 0, "unchanged");
}

/// Killed before and after each call by which it changes a file: then either it can go on, or take everything back.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod dies {
    use super::*;
    use nix::sys::signal::Signal;
    use nix::sys::wait::WaitStatus;

    use trace::{Act, Fault, Missing, Point, Watch};

    fn run(site: &Site, more: &[&str], fault: Option<&Fault>) -> trace::Traced {
        let arguments = arguments(site, more);
        let mut command = site.command(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        trace::run(&mut command, Watch::Since("journal.json"), Missing(&[]), fault)
    }

    /// The calls by which files of the site and of the journal change. What is in a new file counts when the file gets its name.
    fn changes(site: &Site, points: &[Point]) -> Vec<Point> {
        let places = ["etc", "var"].map(|name| site.path(name).display().to_string());
        let changes = [libc::SYS_renameat, libc::SYS_mkdirat, libc::SYS_unlinkat];
        let is_one = |point: &&Point| {
            changes.contains(&point.number)
                && places.iter().any(|place| point.text.contains(place))
                && !point.text.ends_with(".new)")
        };
        points.iter().filter(is_one).cloned().collect()
    }

    #[test]
    fn it_may_die_at_each_change() {
        let Some(site) = site("dies") else { return };
        // Only the files are looked at, and the check is short.
        site.write("etc/jobfence.conf", &(site.read("etc/jobfence.conf") + "Mode=off\n"));
        site.write("etc/plugstack.conf", "# of this site\n");
        let before = site.files();
        let whole = run(&site, &[], None);
        assert_eq!(whole.status, WaitStatus::Exited(whole.pid, 2));
        let on = site.files();
        let back = run(&site, &["--undo"], None);
        assert_eq!((back.status, site.files()), (WaitStatus::Exited(back.pid, 2), before.clone()));
        let [there, back] = [whole, back].map(|traced| changes(&site, &traced.points));
        assert!(there.len() > 5 && back.len() > 5, "{} {}", there.len(), back.len());

        let killed = |more: &[&str], fault: &Fault| {
            let traced = run(&site, more, Some(fault));
            assert_eq!(traced.status, WaitStatus::Signaled(traced.pid, Signal::SIGKILL, false), "{fault:?}");
        };
        let deaths = |at: Point| [Act::DieBefore, Act::DieAfter].map(|act| Fault { at: at.clone(), act });
        for fault in there.into_iter().flat_map(deaths) {
            for goes_on in [false, true] {
                killed(&[], &fault);
                if goes_on {
                    assert!(matches!(run(&site, &[], None).status, WaitStatus::Exited(_, 0 | 2)), "{fault:?}");
                    assert_eq!(site.files(), on, "{fault:?}");
                }
                run(&site, &["--undo"], None);
                assert_eq!(site.files(), before, "{fault:?}");
            }
        }
        for fault in back.into_iter().flat_map(deaths) {
            run(&site, &[], None);
            killed(&["--undo"], &fault);
            run(&site, &["--undo"], None);
            assert_eq!(site.files(), before, "{fault:?}");
            assert!(!site.path("var/setup").exists(), "{fault:?}");
        }
    }
}
