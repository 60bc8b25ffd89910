// SPDX-License-Identifier: GPL-2.0-or-later
//! The client of an interactive job: `qrsh`, `qlogin`, and `qrsh -inherit` of a slave task. It waits until a shepherd calls it. If the job
//! goes into error, no shepherd calls, and the user reads nothing.
//!
//! With `builtin` in the configuration, the call uses the protocol of Grid Engine's daemons, which only the shepherd speaks. So the
//! shepherd runs a program that prints one sentence, as the administrator. It has no fence, so nothing of the user may run in it: no
//! process of the user, which another process of that user could trace, no script of the queue, and no text of the user.
//! With another daemon, the client reads one line from a socket (`qlogin_starter.c`, `get_client_server_context` of `qsh.c`).

use super::spool::{ARGUMENT, BEHIND, CALLED, NONE, SCRIPT, SESSIONS, Values};
use crate::printable::is_printable;

/// The way to call a client.
#[derive(Debug, PartialEq, Eq)]
pub enum Client {
    /// The shepherd calls.
    Builtin,
    /// A line is written to this host and port.
    Socket(String),
}

/// The most characters of a sentence. The shepherd reads lines of the environment in pieces of 10000 bytes.
const LONGEST: usize = 2000;

/// The keys of `config` that replace execd's for this shepherd.
const INSTEAD: [(&str, &str); 32] = [
    ("script_file", "QRSH"),
    ("rsh_daemon", "builtin"),
    ("shell_path", "/bin/sh"),
    ("cwd", "/"),
    ("pty", "2"),
    ("min_uid", "0"),
    ("min_gid", "0"),
    ("qsub_gid", "no"),
    ("inherit_env", "1"),
    ("prolog", NONE),
    ("epilog", NONE),
    ("pe", NONE),
    ("pe_start", NONE),
    ("pe_stop", NONE),
    ("starter_method", NONE),
    ("suspend_method", NONE),
    ("resume_method", NONE),
    ("terminate_method", NONE),
    ("notify", "0"),
    ("ckpt_job", "0"),
    ("use_afs", "0"),
    ("binding", "NULL"),
    ("processors", "UNDEFINED"),
    ("njob_args", "0"),
    ("merge_stderr", "0"),
    ("use_login_shell", "0"),
    ("fs_stdin_file_staging", "0"),
    ("fs_stdout_file_staging", "0"),
    ("fs_stderr_file_staging", "0"),
    ("stdin_path", "/dev/null"),
    ("stdout_path", "/dev/null"),
    ("stderr_path", "/dev/null"),
];

/// The client of the job with this `config`. `None`: there is none, or calling it needs the user's own certificate.
pub fn client(config: &str) -> Option<Client> {
    let values = Values::from_config(config).ok()?;
    let find = |key| values.find(key).ok().flatten();
    let script = find(SCRIPT)?;
    let (_, daemon) = SESSIONS.iter().find(|(of, _)| script.eq_ignore_ascii_case(of))?;
    let (daemon, address) = (find(daemon)?, find(CALLED)?);
    if !daemon.eq_ignore_ascii_case("builtin") {
        return Some(Client::Socket(address.to_owned()));
    }
    find("csp").is_none_or(|csp| csp == "0").then_some(Client::Builtin)
}

/// Whether this `config` is a slave task's; `directory` is the name of its spool directory.
pub fn is_slave_task(config: &str, directory: &str) -> bool {
    Values::from_config(config).is_ok_and(|values| values.slave_task(directory).is_ok_and(|task| task.is_some()))
}

/// A `config` with which the shepherd runs the program of [`environment`] as `administrator`, in the directory `spool`. `None`: the job's
/// user has forged a line of `text`.
pub fn config(text: &str, administrator: &str, spool: &str) -> Option<String> {
    let pid = format!("{spool}/qrsh_pid");
    let of_spool = [
        ("job_owner", administrator),
        ("tmpdir", spool),
        ("queue_tmpdir", spool),
        ("qrsh_tmpdir", spool),
        ("qrsh_pid_file", &pid),
    ];
    let instead: Vec<(&str, &str)> = INSTEAD.into_iter().chain(of_spool).collect();
    let is_replaced = |key: &str| key.starts_with(ARGUMENT) || instead.iter().any(|(of, _)| *of == key);
    let is_users = |key: &str| BEHIND.iter().any(|(of, _)| *of == key);
    let is_limit = |key: &str| key.starts_with("h_") || key.starts_with("s_");
    let kept =
        Values::from_config(text).ok()?.0.into_iter().filter(|(key, _)| !is_replaced(key)).map(|(key, value)| {
            let is_amount = is_limit(key) && value != "UNDEFINED" && !key.ends_with("_is_consumable_job");
            (
                key,
                if is_users(key) {
                    NONE
                } else if is_amount {
                    "INFINITY"
                } else {
                    value
                },
            )
        });
    Some(kept.chain(instead.iter().copied()).map(|(key, value)| format!("{key}={value}\n")).collect())
}

/// The environment with the program that prints the sentence. `ours` looks up a variable that execd gave this process.
pub fn environment(ours: impl Fn(&str) -> Option<String>, sentence: &str) -> Vec<u8> {
    let known = ["SGE_ROOT", "SGE_CELL", "SGE_ARCH"].into_iter().filter_map(|name| Some((name, ours(name)?)));
    let mut text: Vec<u8> = known.flat_map(|(name, value)| format!("{name}={value}\n").into_bytes()).collect();
    text.extend(b"PATH=/usr/bin:/bin\n");
    // QRSH_WRAPPER replaces the user's shell and the client's command (`qrsh_starter.c`).
    text.extend(b"QRSH_WRAPPER=/bin/sh\nQRSH_COMMAND=-c\xffecho \"$0\" >&2; exit 1\xff");
    text.extend(shown(sentence).bytes());
    text.push(b'\n');
    text
}

/// The bytes for a client's socket.
pub fn line(sentence: &str) -> String {
    // The client takes the text up to the first colon for a name, and adds a blank behind it.
    format!("{}\n\0", shown(sentence).replacen(": ", ":", 1))
}

/// A sentence without control characters, and without `\`: `qrsh_starter` and echo read escapes.
fn shown(sentence: &str) -> String {
    sentence.chars().map(|c| if is_printable(c) && c != '\\' { c } else { '?' }).take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::super::spool::recorded;
    use super::*;

    /// A `config` that execd 8.1.9 has written for a `qrsh`.
    const QRSH: &str = "add_grp_id=65402\ncwd=/home/alice\nprolog=root@/site/prolog\nepilog=none\nh_vmem=1M\n\
        h_vmem_is_consumable_job=0\ns_descriptors=UNDEFINED\nshell_path=/home/alice/shell\nscript_file=QRSH\njob_owner=alice\nmin_gid=1000\n\
        job_name=echo\njob_id=3\naccount=sge\nsubmission_time=1\nnjob_args=1\njob_arg1=x\nqueue_tmpdir=/tmp\nadmin_user=sgeadmin\npty=2\n\
        master_host=node1\ncommd_port=-1\nqrsh_control_port=node1:42727\nrsh_daemon=builtin\nqrsh_tmpdir=/tmp/3.1.all.q\n\
        qrsh_pid_file=/tmp/3.1.all.q/pid\ninherit_env=1\ncsp=0\n";

    #[test]
    fn a_client_is_called_as_the_shepherd_would() {
        assert_eq!(client(QRSH), Some(Client::Builtin));
        let sshd = QRSH.replace("=builtin", "=/usr/sbin/sshd -i");
        assert_eq!(client(&sshd), Some(Client::Socket("node1:42727".to_owned())));
        let login = QRSH.replace("script_file=QRSH", "script_file=QLOGIN").replace("rsh_daemon", "qlogin_daemon");
        assert_eq!(client(&login), Some(Client::Builtin));
        for (from, to) in [
            ("script_file=QRSH", "script_file=/spool/job_scripts/3"),
            ("qrsh_control_port=node1:42727\n", ""),
            ("csp=0", "csp=1"),
            ("job_name=echo", "job_name=echo\njob_owner=root"),
        ] {
            assert_eq!(client(&QRSH.replace(from, to)), None, "{to}");
        }
    }

    #[test]
    fn nothing_of_the_users_runs_without_a_fence() {
        let text = config(QRSH, "sgeadmin", "/spool/3.1").unwrap();
        let of = |key: &str| {
            let found: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect();
            assert!(found.len() < 2, "{key} is there twice");
            found.first().copied()
        };
        for (key, value) in [
            ("job_owner", "sgeadmin"),
            ("prolog", "none"),
            ("shell_path", "/bin/sh"),
            ("cwd", "/"),
            ("job_name", "none"),
            ("account", "none"),
            ("h_vmem", "INFINITY"),
            ("h_vmem_is_consumable_job", "0"),
            ("s_descriptors", "UNDEFINED"),
            ("min_gid", "0"),
            ("qrsh_tmpdir", "/spool/3.1"),
            ("qrsh_pid_file", "/spool/3.1/qrsh_pid"),
            ("add_grp_id", "65402"),
            ("qrsh_control_port", "node1:42727"),
        ] {
            assert_eq!(of(key), Some(value), "{key}");
        }
        // A default of the complex can be 0.
        let without = config(&QRSH.replace("h_vmem=1M", "h_vmem=0"), "sgeadmin", "/spool/3.1").unwrap();
        assert!(without.lines().any(|line| line == "h_vmem=INFINITY"), "{without}");
        assert!(!text.contains("alice") && !text.contains("job_arg1") && !text.contains("/tmp"), "{text}");
        assert_eq!(config(&QRSH.replace("job_arg1=x", "job_arg1=x\ncoshepherd=/home/alice/x"), "a", "/b"), None);
        let called = "qrsh_control_port=node1:42727";
        assert_eq!(config(&QRSH.replace(called, &format!("{called}\ncoshepherd=/home/alice/x")), "a", "/b"), None);
    }

    #[test]
    fn each_client_of_a_real_execds_is_known() {
        for (kind, text, _) in recorded() {
            let has_client = ["command", "shell", "login", "slave"].contains(&kind.as_str());
            assert_eq!(client(&text), has_client.then_some(Client::Builtin), "{kind}");
            assert_eq!(is_slave_task(&text, "1.node1"), kind == "slave", "{kind}");
            let instead = config(&text, "sgeadmin", "/spool").unwrap();
            assert!(!instead.contains("alice"), "{kind}: {instead}");
        }
        let all = recorded();
        for (key, _) in INSTEAD {
            let line = format!("\n{key}=");
            assert!(all.iter().any(|(_, text, _)| text.contains(&line)), "{key}");
        }
    }

    #[test]
    fn a_sentence_is_one_line_and_no_command() {
        let known = |name: &str| (name == "SGE_ROOT").then(|| "/opt/sge".to_owned());
        let text = environment(known, "jobfence: no\\n: \"$(id)\"\nX=y");
        let expected = b"SGE_ROOT=/opt/sge\nPATH=/usr/bin:/bin\nQRSH_WRAPPER=/bin/sh\n\
            QRSH_COMMAND=-c\xffecho \"$0\" >&2; exit 1\xffjobfence: no?n: \"$(id)\"?X=y\n";
        assert_eq!(text, expected);
        assert_eq!(line("jobfence: no: not\nthat"), "jobfence:no: not?that\n\0");
    }
}
