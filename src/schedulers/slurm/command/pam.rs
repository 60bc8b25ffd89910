// SPDX-License-Identifier: GPL-2.0-or-later
//! What this host's PAM configuration does with sessions that pam_slurm_adopt lets in.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Where services are configured; and where distributions put files that the first directory does not have (pam.d(5)).
pub const DIRECTORY: &str = "/etc/pam.d";
const VENDORS: &str = "/usr/lib/pam.d";

/// libpam's limit of nested files.
const DEEPEST: usize = 16;

/// The faults, if any: for each service what an administrator should do. `line` is the line that it should have; `own`: whether a session
/// is outside every fence without the line.
pub fn faults(directory: &Path, line: &str, own: bool) -> Vec<String> {
    let directories = [directory, Path::new(VENDORS)];
    let stacks: Vec<Stack> = files(directory).iter().map(|file| Stack::read(&directories, file)).collect();
    let included: BTreeSet<&PathBuf> = stacks.iter().flat_map(|stack| &stack.included).collect();
    let mut faults = Vec::new();
    for stack in &stacks {
        let lack = || stack.lack(line, !included.contains(&stack.file)).filter(|_| own);
        // A file that several services include is reported once.
        faults.extend(stack.hole(line).or_else(lack).filter(|fault| !faults.contains(fault)));
    }
    faults
}

/// The services by which a job's user can begin a session from within the job.
const BEGUN_BY_JOBS: [&str; 4] = ["su", "su-l", "sudo", "sudo-i"];
/// The services of daemons that run users' commands later. Distributions name the first in two ways.
const LEFT_WITH: [&str; 3] = ["cron", "crond", "atd"];

/// The services by which a job's processes can leave it. `own` as above.
pub fn ways_out(directory: &Path, line: &str, own: bool) -> Vec<String> {
    let directories = [directory, Path::new(VENDORS)];
    let stacks: Vec<(String, Stack)> = files(directory)
        .iter()
        .filter_map(|file| Some((file.file_name()?.to_str()?.to_owned(), Stack::read(&directories, file))))
        .collect();
    let is_begun = |name: &str, stack: &Stack| {
        // If the limits are in Slurm's directories, Slurm's PAM module puts ssh sessions into a job first.
        BEGUN_BY_JOBS.contains(&name) || !own && stack.calls.iter().any(|call| stack.adopts(call, false))
    };
    let mut moved: Vec<(String, Vec<&str>)> = Vec::new();
    for (name, stack) in stacks.iter().filter(|(name, stack)| is_begun(name, stack)) {
        let Some(logind) = stack.moves_out(true) else { continue };
        match moved.iter_mut().find(|(by, _)| *by == logind) {
            Some((_, names)) => names.push(name),
            None => moved.push((logind, vec![name])),
        }
    }
    let mut said: Vec<String> = moved
        .into_iter()
        .map(|(logind, names)| {
            format!(
                "a job's processes leave it by {}: {logind} moves the session into user.slice; put this line before the \
                 session lines, and once more behind them: {line} stay",
                names.join(", ")
            )
        })
        .collect();
    let left: Vec<&str> = stacks
        .iter()
        .filter(|(name, stack)| LEFT_WITH.contains(&name.as_str()) && !stack.calls.iter().any(Call::is_ours))
        .map(|(name, _)| name.as_str())
        .collect();
    if !left.is_empty() {
        said.push(format!(
            "what users schedule with {} runs outside of every job; to admit only users with a job, and only into the \
             job, add as the last line of each: {line}",
            left.join(", ")
        ));
    }
    said
}

/// The module that moves a session of this service out of the job that it comes from, unless another line puts it back.
pub fn moves_out(directory: &Path, service: &str) -> Option<String> {
    let directories = [directory, Path::new(VENDORS)];
    let file = directories.iter().map(|directory| directory.join(service)).find(|file| file.is_file())?;
    Stack::read(&directories, &file).moves_out(false)
}

/// The files of services, by name; none if the directory cannot be read.
fn files(directory: &Path) -> Vec<PathBuf> {
    let left_over = |name: &str| {
        name.ends_with('~')
            || [".dpkg-", ".rpm", ".bak", ".orig", ".old", ".ucf-"].iter().any(|mark| name.contains(mark))
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let entries = entries.filter(|entry| !left_over(&entry.file_name().to_string_lossy()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|file| file.is_file()).collect();
    files.sort();
    files
}

/// The place of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PamLinePlace {
    file: PathBuf,
    line: usize,
}

impl fmt::Display for PamLinePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// A line that calls a module.
struct Call {
    kind: PamGroup,
    /// The module and its arguments.
    words: Vec<String>,
    /// How the line came into the service: the places from the service's own file to the line's own.
    path: Vec<PamLinePlace>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PamGroup {
    Auth,
    Account,
    Session,
    Password,
}

impl PamGroup {
    fn from_word(word: &str) -> Option<Self> {
        // A `-` only says that the module may be missing.
        let word = word.strip_prefix('-').unwrap_or(word);
        let known = [
            ("auth", Self::Auth),
            ("account", Self::Account),
            ("session", Self::Session),
            ("password", Self::Password),
        ];
        known.into_iter().find(|(name, _)| word.eq_ignore_ascii_case(name)).map(|(_, kind)| kind)
    }
}

impl Call {
    fn module(&self) -> &str {
        let name = self.words.first().map_or("", |word| base_name(word));
        name.strip_suffix(".so").unwrap_or(name)
    }

    fn argument(&self, key: &str) -> Option<&str> {
        self.words.iter().skip(1).rev().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    fn at(&self) -> &PamLinePlace {
        self.path.last().expect("a call is somewhere")
    }

    /// Whether it puts the session into a job.
    fn is_ours(&self) -> bool {
        self.kind == PamGroup::Session && (self.module() == "libjobfence" || self.executes_us())
    }

    fn executes_us(&self) -> bool {
        let is_adopt =
            |pair: &[String]| matches!(pair, [program, word] if base_name(program) == "jobfence" && word == "adopt");
        self.module() == "pam_exec" && self.words.windows(2).any(is_adopt)
    }

    /// Whether it lets the user write into PAM's environment. By default it does not, since Linux-PAM 1.4 and in Red Hat's older releases.
    fn reads_users_environment(&self) -> bool {
        // As C's atoi.
        let is_on = |value: &str| value.trim_start_matches(['+', '-', '0']).starts_with(|c: char| c.is_ascii_digit());
        self.module() == "pam_env" && self.argument("user_readenv").is_some_and(is_on)
    }

    /// Whether it moves the process into a cgroup of the session.
    fn is_logind(&self) -> bool {
        self.kind == PamGroup::Session && matches!(self.module(), "pam_systemd" | "pam_elogind")
    }

    /// Where the paths to this call and to another one separate: in a file that both are in.
    fn parts_from(&self, other: &Self) -> &PamLinePlace {
        let differs = |(ours, theirs): &(&PamLinePlace, &PamLinePlace)| ours != theirs;
        self.path.iter().zip(&other.path).find(differs).map_or(self.at(), |(ours, _)| ours)
    }
}

/// A service with all that it includes, in PAM's order.
struct Stack {
    /// The service's own file.
    file: PathBuf,
    calls: Vec<Call>,
    included: BTreeSet<PathBuf>,
}

impl Stack {
    fn read(directories: &[&Path], file: &Path) -> Self {
        let mut stack = Self { file: file.to_owned(), calls: Vec::new(), included: BTreeSet::new() };
        stack.add(directories, file, None, &[]);
        stack
    }

    fn add(&mut self, directories: &[&Path], file: &Path, only: Option<PamGroup>, path: &[PamLinePlace]) {
        // PAM treats an unreadable file as a failure: no session begins.
        let Ok(text) = fs::read(file) else { return };
        for (line, words) in statements(&String::from_utf8_lossy(&text)) {
            let path = [path, &[PamLinePlace { file: file.to_owned(), line }]].concat();
            let mut include = |name: &str, only| {
                let found = directories.iter().map(|directory| directory.join(name)).find(|file| file.is_file());
                let Some(found) = found.filter(|_| path.len() < DEEPEST) else { return };
                self.add(directories, &found, only, &path);
                self.included.insert(found);
            };
            match words.as_slice() {
                [word, name, ..] if word == "@include" => include(name, only),
                [kind, control, rest @ ..] => {
                    let Some(kind) = PamGroup::from_word(kind).filter(|kind| only.is_none_or(|only| only == *kind))
                    else {
                        continue;
                    };
                    match rest {
                        [name, ..] if ["include", "substack"].iter().any(|word| control.eq_ignore_ascii_case(word)) => {
                            include(name, Some(kind));
                        }
                        _ => self.calls.push(Call { kind, words: rest.to_vec(), path }),
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether a user can become root through jobfence's line. PAM's environment lasts from auth to session.
    fn hole(&self, line: &str) -> Option<String> {
        self.calls.iter().enumerate().find_map(|(number, ours)| {
            if !ours.executes_us() {
                return None;
            }
            // pam_exec also runs when the session is closed, after the whole stack has run.
            let again = ours.kind == PamGroup::Session && ours.argument("type") != Some("open_session");
            let before = |other, kind| if kind == ours.kind { again || other < number } else { kind == PamGroup::Auth };
            let sets = |(other, call): &(usize, &Call)| call.reads_users_environment() && before(*other, call.kind);
            let (_, env) = self.calls.iter().enumerate().find(sets)?;
            Some(format!(
                "ANY USER CAN BECOME ROOT: {} runs 'jobfence adopt' as root with variables that users set by {} (pam_env, \
                 user_readenv); put in its place: {line}",
                ours.at(),
                env.at()
            ))
        })
    }

    /// What is missing so that sessions are fenced, if pam_slurm_adopt lets them in. `alone`: no service includes this file.
    fn lack(&self, line: &str, alone: bool) -> Option<String> {
        let adopting = self.calls.iter().find(|call| self.adopts(call, alone))?;
        let Some(number) = self.calls.iter().rposition(Call::is_ours) else {
            return Some(format!(
                "ssh sessions are NOT fenced: {} has pam_slurm_adopt, and no session line of {} calls jobfence; add as its last \
                 line: {line}",
                adopting.at(),
                self.file.display()
            ));
        };
        let (ours, later) = self.calls.get(number..)?.split_first()?;
        let logind = later.iter().rfind(|call| call.is_logind())?;
        Some(format!(
            "ssh sessions are NOT fenced with cgroup v2: {} puts them into the job, and then {} ({}) moves them out of it; move \
             {} behind {}",
            ours.at(),
            logind.module(),
            logind.at(),
            ours.parts_from(logind),
            logind.parts_from(ours)
        ))
    }

    /// The module that moves the session out of its job for good. `both`: the session may have no parent in the job, so jobfence's line
    /// must also be before that module.
    fn moves_out(&self, both: bool) -> Option<String> {
        let last = self.calls.iter().rposition(Call::is_logind)?;
        let first = self.calls.iter().position(Call::is_logind)?;
        let (before, behind) = (self.calls.get(..first)?, self.calls.get(last..)?);
        let is_held = behind.iter().any(Call::is_ours) && (!both || before.iter().any(Call::is_ours));
        let logind = self.calls.get(last)?;
        (!is_held).then(|| format!("{} ({})", logind.module(), logind.at()))
    }

    /// Whether it is pam_slurm_adopt, and active in this service: by default only in sshd.
    fn adopts(&self, call: &Call, alone: bool) -> bool {
        let service = call.argument("service").unwrap_or("sshd");
        call.kind == PamGroup::Account
            && call.module() == "pam_slurm_adopt"
            && (service == "*" && alone || self.file.file_name().is_some_and(|name| name == service))
    }
}

/// The statements of a file as words, each with the number of its first line: without comments, continued lines joined (pam.d(5)).
fn statements(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let mut statement = line.split('#').next().unwrap_or_default().to_owned();
        while statement.ends_with('\\') {
            statement.pop();
            let more = lines.next().map_or("", |(_, more)| more);
            statement.push(' ');
            statement.push_str(more.split('#').next().unwrap_or_default());
        }
        found.push((number + 1, words(&statement)));
    }
    found
}

/// Splits at blanks, except within brackets.
fn words(statement: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = statement.trim_start();
    while !rest.is_empty() {
        let (word, after) = match rest.strip_prefix('[') {
            Some(bracketed) => bracketed.split_once(']').unwrap_or((bracketed, "")),
            None => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        };
        words.push(word.to_owned());
        rest = after.trim_start();
    }
    words
}

fn base_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADOPT: &str = "account required pam_unix.so\n-account required pam_slurm_adopt.so\n";
    const EXEC: &str = "session required pam_exec.so quiet stdout /usr/sbin/jobfence adopt --config /x\n";
    const MODULE: &str = "session required /usr/lib/slurm/libjobfence.so config=/x\n";
    const USER_ENV: &str = "session required pam_env.so user_readenv=1 envfile=/etc/default/locale\n";
    const SYSTEMD: &str = "-session optional pam_systemd.so\n";

    fn faults_of(files: &[(&str, &str)], own: bool) -> Vec<String> {
        let temp = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(temp.path().join(name), text).unwrap();
        }
        let said = faults(temp.path(), "THE LINE", own);
        said.iter().map(|said| said.replace(&format!("{}/", temp.path().display()), "")).collect()
    }

    fn with(files: &[(&str, &str)]) -> Vec<String> {
        faults_of(files, true)
    }

    fn lack(adopting: &str, service: &str) -> Vec<String> {
        vec![format!(
            "ssh sessions are NOT fenced: {adopting} has pam_slurm_adopt, and no session line of {service} calls jobfence; \
             add as its last line: THE LINE"
        )]
    }

    #[test]
    fn says_which_line_goes_into_which_file() {
        assert_eq!(with(&[("sshd", ADOPT), ("su", "")]), lack("sshd:2", "sshd"));
        let in_parts = "account [default=bad \\\n success=ok] /lib/pam_slurm_adopt.so x\n";
        assert_eq!(with(&[("sshd", in_parts)]), lack("sshd:1", "sshd"));
        // Each way in which one file includes another.
        for include in ["account include system-auth", "account substack system-auth", "@include system-auth"] {
            assert_eq!(with(&[("system-auth", ADOPT), ("sshd", include)]), lack("system-auth:2", "sshd"), "{include}");
        }
        assert_eq!(with(&[("system-auth", ADOPT), ("sshd", "session include system-auth")]), [""; 0]);
        // Only in sshd, unless told otherwise.
        assert_eq!(with(&[("common-account", ADOPT), ("cron", "@include common-account\n")]), [""; 0]);
        let cron = ("cron", "@include common-account\n");
        for service in ["*", "cron"] {
            let adopt = format!("account required pam_slurm_adopt.so service={service}\n");
            assert_eq!(with(&[("common-account", &adopt), cron]), lack("common-account:1", "cron"));
        }
        assert_eq!(faults_of(&[("sshd", ADOPT)], false), [""; 0]);
    }

    #[test]
    fn says_nothing_without_pam_slurm_adopt() {
        assert_eq!(faults(Path::new("/nonexistent"), "", true), [""; 0]);
        let none =
            "account required pam_unix.so\n# account required pam_slurm_adopt.so\nsession required pam_slurm_adopt.so";
        assert_eq!(with(&[("sshd", none), ("sshd.dpkg-old", ADOPT), ("sshd~", ADOPT)]), [""; 0]);
    }

    #[test]
    fn says_nothing_where_the_line_is() {
        for line in [EXEC, MODULE] {
            assert_eq!(with(&[("sshd", &format!("{ADOPT}{line}"))]), [""; 0]);
            assert_eq!(
                with(&[("sshd", &format!("{ADOPT}@include common-session")), ("common-session", line)]),
                [""; 0]
            );
            // The line is not in this service, not in this stack, or nowhere.
            for other in [line.replace("session", "auth"), format!("#{line}"), line.replace("jobfence", "jobfences")] {
                let said = with(&[("sshd", &format!("{ADOPT}{other}")), ("su-l", line), ("common-session", line)]);
                assert_eq!(said, lack("sshd:2", "sshd"), "{other}");
            }
            let included = format!("{ADOPT}account include common-session\n");
            assert_eq!(with(&[("sshd", &included), ("common-session", line)]), lack("sshd:2", "sshd"));
        }
        for other in [EXEC.replace("adopt", "check"), EXEC.replace("pam_exec.so", "pam_echo.so")] {
            assert_eq!(with(&[("sshd", &format!("{ADOPT}{other}"))]), lack("sshd:2", "sshd"), "{other}");
        }
    }

    #[test]
    fn says_where_users_choose_what_roots_program_loads() {
        let hole = |ours: &str, env: &str| {
            vec![format!(
                "ANY USER CAN BECOME ROOT: {ours} runs 'jobfence adopt' as root with variables that users set by {env} (pam_env, \
                 user_readenv); put in its place: THE LINE"
            )]
        };
        let debian = |last: &str| format!("{ADOPT}@include common-session\n{USER_ENV}{last}");
        let session = ("common-session", SYSTEMD);
        assert_eq!(with(&[session, ("sshd", &debian(EXEC))]), hole("sshd:5", "sshd:4"));
        assert_eq!(with(&[session, ("sshd", &debian(MODULE))]), [""; 0]);
        let before = format!("{ADOPT}@include common-session\n{EXEC}{USER_ENV}");
        assert_eq!(with(&[session, ("sshd", &before)]), hole("sshd:4", "sshd:5"));
        let opens = before.replace("quiet", "quiet type=open_session");
        assert_eq!(with(&[session, ("sshd", &opens)]), [""; 0]);
        assert_eq!(with(&[session, ("sshd", &debian(EXEC).replace("readenv=1", "readenv=0"))]), [""; 0]);
        assert_eq!(with(&[session, ("sshd", &debian(EXEC).replace("user_readenv=1 ", ""))]), [""; 0]);
        // In any service, whether or not it lets users in, and whether or not it limits them.
        assert_eq!(faults_of(&[("cron", &format!("{USER_ENV}{EXEC}"))], false), hole("cron:2", "cron:1"));
        // What auth sets lasts, wherever its line is.
        let auth = USER_ENV.replace("session", "auth");
        let el = "auth substack password-auth\nsession include password-auth\n";
        let both = format!("{SYSTEMD}{EXEC}{auth}");
        assert_eq!(
            with(&[("password-auth", &both), ("sshd", el), ("login", el)]),
            hole("password-auth:2", "password-auth:3")
        );
        assert_eq!(
            with(&[("password-auth", &both), ("cron", "session include password-auth\n")]),
            hole("password-auth:2", "password-auth:3")
        );
    }

    #[test]
    fn says_where_the_session_is_moved_out_again() {
        let moved = |ours: &str, systemd: &str, from: &str, to: &str| {
            vec![format!(
                "ssh sessions are NOT fenced with cgroup v2: {ours} puts them into the job, and then pam_systemd ({systemd}) \
                 moves them out of it; move {from} behind {to}"
            )]
        };
        let session = ("common-session", SYSTEMD);
        let sshd = format!("{ADOPT}{MODULE}@include common-session\n");
        assert_eq!(with(&[session, ("sshd", &sshd)]), moved("sshd:3", "common-session:1", "sshd:3", "sshd:4"));
        let both = format!("{EXEC}{SYSTEMD}");
        let sshd = format!("{ADOPT}@include common-session\n");
        let said = moved("common-session:1", "common-session:2", "common-session:1", "common-session:2");
        assert_eq!(with(&[("common-session", &both), ("sshd", &sshd)]), said);
        // Another line behind it suffices.
        assert_eq!(with(&[("common-session", &both), ("sshd", &format!("{sshd}{MODULE}"))]), [""; 0]);
    }

    #[test]
    fn says_by_which_services_jobs_are_left() {
        let ways = |files: &[(&str, &str)], own: bool| {
            let temp = tempfile::tempdir().unwrap();
            for (name, text) in files {
                fs::write(temp.path().join(name), text).unwrap();
            }
            let said = ways_out(temp.path(), "THE LINE", own);
            let by_sshd = moves_out(temp.path(), "sshd");
            let plain = |said: String| said.replace(&format!("{}/", temp.path().display()), "");
            (said.into_iter().map(plain).collect::<Vec<_>>(), by_sshd.map(plain))
        };
        let moved = |names: &str| {
            format!(
                "a job's processes leave it by {names}: pam_systemd (common-session:1) moves the session into user.slice; put \
                 this line before the session lines, and once more behind them: THE LINE stay"
            )
        };
        let session = ("common-session", SYSTEMD);
        let su = "@include common-session\n";
        let stay = MODULE.replace('\n', " stay\n");
        assert_eq!(ways(&[session, ("su", su), ("su-l", "session include su\n")], true).0, [moved("su, su-l")]);
        assert_eq!(ways(&[session, ("su", "session required pam_unix.so\n"), ("login", su)], true).0, [""; 0]);
        // With the line only behind it, a process whose parent is gone is not found.
        assert_eq!(ways(&[session, ("su", &format!("{su}{stay}"))], true).0, [moved("su")]);
        let held = format!("{stay}{su}{stay}");
        assert_eq!(ways(&[session, ("su", &held), ("su-l", "session include su\n")], true).0, [""; 0]);
        // An sshd that a job's daemon starts has that daemon as its parent.
        let sshd = |stack: &str| ways(&[session, ("sshd", stack)], true).1;
        assert_eq!(sshd(su).as_deref(), Some("pam_systemd (common-session:1)"));
        assert_eq!(sshd(&format!("{su}{MODULE}")), None);
        assert_eq!(sshd(&format!("{MODULE}{su}")).as_deref(), Some("pam_systemd (common-session:1)"));
        assert_eq!(ways(&[], true), (Vec::new(), None));
        // pam_slurm_adopt has put it into Slurm's own cgroup.
        let adopting = format!("{ADOPT}{su}");
        assert_eq!(ways(&[session, ("sshd", &adopting)], false).0, [moved("sshd")]);
        assert_eq!(ways(&[session, ("sshd", &adopting)], true).0, [""; 0]);
        assert_eq!(ways(&[session, ("sshd", &format!("{ADOPT}{held}"))], false).0, [""; 0]);
        let said = ways(&[session, ("cron", su), ("atd", ""), ("crond", MODULE)], true).0;
        let left = "what users schedule with atd, cron runs outside of every job; to admit only users with a job, and only \
                    into the job, add as the last line of each: THE LINE";
        assert_eq!(said, [left]);
    }

    #[test]
    fn an_endless_stack_has_an_end() {
        let said = with(&[("sshd", &format!("{ADOPT}@include common\n")), ("common", "session include common\n")]);
        assert_eq!(said, lack("sshd:2", "sshd"));
    }
}
