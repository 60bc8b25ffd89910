# SPDX-License-Identifier: GPL-2.0-or-later
"""Deliberate breaks of the code, and for each the cheapest test that should notice it.

`old` is in the file exactly once. `noticer` is 'unit FILTER…', 'host FILE TEST…' (a file of tests/), 'hook CASE…' (of
tests/pbs/replay.py), 'slurm CASE…' (in a private Slurm) or 'nodes CASE…' (in one of two nodes).
"""

from typing import NamedTuple


class Break(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    noticer: str


ADOPT = "src/schedulers/slurm/adopt.rs"
TAKE_BACK = "src/doors/take_back.rs"
EXPLAINED = "host host what_is_explained_is_what_is_written"
NOTHING = "set: |_, _, _, _| Ok(()),"
LIMITING = "src/fence/limiting.rs"
RULES = "src/fence/rules.rs"
POLICY = "src/policy.rs"
CORES = "src/doors/cores.rs"
KEYS = "src/config/keys.rs"
UNITS = "src/config/units.rs"
CANDIDATES = "src/config/candidates.rs"
SECTIONS = "src/config/sections.rs"
STRICTNESS = "src/config/strictness.rs"
JOB = "src/record/job.rs"
FILES = "src/record/files.rs"
REFUSE = "src/launch/refuse.rs"
CARD = "src/report/card.rs"
SLURM_CONF = "src/schedulers/slurm/conf.rs"
ADVICE = "src/report/card/advice.rs"
CARDS_WORDS = "src/report/card/words.rs"
SPOOL = "src/schedulers/gridengine/spool.rs"
SETUP_JOURNAL = "src/command/setup/journal.rs"
CLIENT = "src/schedulers/gridengine/client.rs"
EARLY_MOVE = "src/launch/early_move.rs"
LAYOUT = "src/cgroup/layout.rs"
LONG_ROLL = "src/record/roll.rs"
SLOT_AD = "src/schedulers/htcondor/slot_ad.rs"
JOB_AD = "src/schedulers/htcondor/job_ad.rs"
SETTINGS = "src/schedulers/htcondor/settings.rs"
CONDOR_SETUP = "src/schedulers/htcondor/command/setup.rs"
GRIDENGINE_SETUP = "src/schedulers/gridengine/command/setup.rs"
PBS_SETUP = "src/schedulers/pbs/command/setup.rs"
STARTER = "src/schedulers/htcondor/command/starter.rs"
CARD_DOOR = "src/schedulers/slurm/spank/card.rs"
C_ABI = "src/doors/c_abi.rs"
C_STRUCTS = "src/doors/c_abi/given.rs"
HOOK = "hooks/pbs/jobfence.py"
PBS = "src/schedulers/pbs.rs"
STRAYS = "src/schedulers/pbs/strays.rs"
PROGRAM = "src/sys/program.rs"
C_LIFE = "host c_abi a_program_in_c_lives"

BREAKS = (
    # A limit that is not written.
    Break(
        "quota_not_written", RULES,
        "set: |_, dir, version, limits| limits.cpu.map_or(Ok(()), |quota| limits::set_cpu_quota(dir, version, quota)),",
        NOTHING,
        EXPLAINED,
    ),
    Break(
        "memory_not_written", RULES,
        "set: |_, dir, version, limits| limits.ram.map_or(Ok(()), |bytes| limits::set_ram(dir, version, bytes)),",
        NOTHING,
        EXPLAINED,
    ),
    Break(
        "high_not_written", RULES,
        "set: |_, dir, version, limits| limits.high.map_or(Ok(()), |bytes| limits::set_high(dir, version, bytes)),",
        NOTHING,
        EXPLAINED,
    ),
    Break(
        "processes_not_written", RULES,
        "writes: number_writes,\n            set: set_plainly,",
        f"writes: number_writes,\n            {NOTHING}",
        "host host no_more_processes_than_the_site_allows",
    ),
    Break(
        "disk_rate_not_written", RULES,
        "set: |_, dir, version, limits| limits.disks.iter().try_for_each(|limit| io::set_max(dir, version, *limit)),",
        NOTHING,
        "slurm io_limits",
    ),
    Break(
        "io_weight_not_written", RULES,
        "set: |_, dir, version, limits| limits.io_weight.map_or(Ok(()), |weight| io::set_weight(dir, version, weight)),",
        NOTHING,
        "host host a_job_has_a_weight_of_io_where_the_kernel_has_any",
    ),
    Break(
        "huge_pages_not_written", RULES,
        "set: |_, dir, version, limits| huge_pages::set(dir, version, &limits.huge_pages),",
        NOTHING,
        "host host huge_pages_are_limited_where_they_are_touched_and_where_they_are_reserved",
    ),
    Break(
        "weight_not_written", RULES,
        "limits::set_number(dir, \"cpu\", limits::weight_file(version), value)",
        "Ok(drop(value))",
        EXPLAINED,
    ),
    Break(
        "burst_not_written", RULES,
        "Some(quota) => limits::set_cpu_burst(dir, version, burst_us(burst, quota)),",
        "Some(quota) => Ok(drop(burst_us(burst, quota))),",
        EXPLAINED,
    ),
    # A wrong unit or number.
    Break(
        "weight_of_v1_in_units_of_v2", "src/cgroup/limits.rs",
        "Version::V1 => (weight.saturating_mul(1024).saturating_add(50) / 100).max(2),",
        "Version::V1 => weight,",
        "unit cgroup::limits",
    ),
    Break(
        "a_tenth_of_the_slack", "src/cgroup/limits.rs",
        "const SLACK_US: u64 = 10_000;",
        "const SLACK_US: u64 = 1_000;",
        "unit cgroup::limits policy::",
    ),
    Break(
        "percent_of_ten_times_as_much", UNITS,
        "u128::from(self.0) / 10_000)",
        "u128::from(self.0) / 1_000)",
        "unit policy::",
    ),
    Break(
        "a_number_without_a_unit_in_kib", UNITS,
        "bytes::parse(text, Some(1 << 20))?;",
        "bytes::parse(text, Some(1 << 10))?;",
        "unit config::",
    ),
    Break(
        "milliseconds_as_microseconds", UNITS,
        '"ms" => count.checked_mul(1_000),',
        '"ms" => Some(count),',
        "unit config::",
    ),
    Break(
        "weight_of_a_cpu", POLICY,
        "const WEIGHT_OF_CPU: u64 = 10;",
        "const WEIGHT_OF_CPU: u64 = 100;",
        "unit policy::",
    ),
    Break(
        "swap_of_v1_without_memory", RULES,
        "Version::V1 => limits::whole_pages(limit.ram.saturating_add(limit.swap)),",
        "Version::V1 => limits::whole_pages(limit.swap),",
        EXPLAINED,
    ),
    Break(
        "the_higher_of_two_quotas", "src/cgroup/limits.rs",
        "if self.is_above(other) { other } else { self }",
        "if self.is_above(other) { self } else { other }",
        "unit policy::",
    ),
    # A wrong limit is planned.
    Break(
        "children_above_their_parents", POLICY,
        "    plan.nest();\n    plan.save_for_later(config);",
        "    plan.save_for_later(config);",
        "unit policy::",
    ),
    Break(
        "no_least_memory", POLICY,
        "config.allowed_ram_space.of(memory).max(config.min_ram_space);",
        "config.allowed_ram_space.of(memory);",
        "unit policy::",
    ),
    Break(
        "a_tasks_processes_are_the_jobs", POLICY,
        "plan.task.numbers = config.numbers_per_task;",
        "plan.task.numbers = config.numbers;",
        "unit policy::",
    ),
    Break(
        "a_users_processes_are_forgotten", POLICY,
        "    plan.user.numbers = config.numbers_per_user;\n",
        "",
        "unit policy::",
    ),
    Break(
        "the_job_is_killed_as_a_whole", POLICY,
        "plan.step.oom_group = config.oom_kill_step;",
        "plan.job.oom_group = config.oom_kill_step;",
        "unit policy::",
    ),
    # The configuration.
    Break(
        "sections_above_arguments", "src/config/resolve.rs",
        "self.written.general.iter().chain(in_sections).chain(&self.arguments).cloned()",
        "self.written.general.iter().chain(&self.arguments).chain(in_sections).cloned()",
        "unit config::",
    ),
    Break(
        "a_qos_in_other_letters_is_another", SECTIONS,
        "SectionKind::Qos | SectionKind::Account => name.to_lowercase(),",
        "SectionKind::Qos | SectionKind::Account => name.to_owned(),",
        "unit config::",
    ),
    Break(
        "what_is_unknown_does_not_hold", CANDIDATES,
        "        Some(_) => Holds::No,\n        None => Holds::If(names.to_vec()),\n    };",
        "        Some(_) => Holds::No,\n        None => Holds::No,\n    };",
        "unit config::",
    ),
    Break(
        "a_default_that_the_manual_does_not_say", KEYS,
        "Duration::from_secs(10), kinds::TIMEOUT, node;",
        "Duration::from_secs(11), kinds::TIMEOUT, node;",
        "unit jobfence_conf_5",
    ),
    Break(
        "a_key_that_sections_may_not_have_any_more", KEYS,
        "kinds::CPU_POLICY, jobs(strictness::cpu_policy);",
        "kinds::CPU_POLICY, node;",
        "unit jobfence_conf_5",
    ),
    Break("a_nodes_key_in_a_section", SECTIONS, "if !key.is_per_job() {", "if false {", "unit config::"),
    Break(
        "off_is_the_strictest_mode", STRICTNESS,
        "(Mode::Off, _) | (Mode::Observe, Mode::Enforce)",
        "(Mode::Enforce, _) | (Mode::Observe, Mode::Enforce)",
        "unit config::",
    ),
    Break(
        "the_largest_is_the_strictest", STRICTNESS,
        "    if *other < *value {",
        "    if *other > *value {",
        "unit config::",
    ),
    Break(
        "a_path_with_two_dots", UNITS,
        'if sound && text.split(\'/\').all(|part| part != "..") {',
        "if sound {",
        "unit config::",
    ),
    Break(
        "a_base_that_begins_with_a_dot", UNITS,
        "!name.is_empty() && !name.starts_with('.') && plain(name)",
        "!name.is_empty() && plain(name)",
        "unit config::",
    ),
    # Records.
    Break(
        "half_a_record_is_one", "src/record/header.rs",
        'if lines.next_back() != Some("end") {',
        "if lines.next_back().is_none() {",
        "unit record::",
    ),
    Break(
        "a_record_of_another_boot_counts", "src/record/header.rs",
        "if self.boot_id != host.boot_id {",
        "if false {",
        "host host a_record_of_another_boot_is_forgotten_and_kills_nobody",
    ),
    Break(
        "a_run_dir_that_others_can_open", FILES,
        "|| stat.st_mode & 0o077 != 0 {",
        "|| stat.st_mode & 0o022 != 0 {",
        "unit record::",
    ),
    Break(
        "a_record_of_anybodys", FILES,
        "mode == kind && stat.st_uid == nix::unistd::geteuid().as_raw() && stat.st_mode & 0o077 == 0",
        "mode == kind",
        "unit record::",
    ),
    Break(
        "the_record_is_not_removed", "src/janitor/one.rs",
        "if header.is_shared() { records.forget_shared(levels) } else { records.forget(levels) }",
        "let _ = (records, levels, header);\n    Ok(())",
        "host host what_a_dead_owner_left_is_removed_and_what_a_living_one_has_is_not",
    ),
    Break(
        "a_name_of_two_lines", JOB,
        "text.len() <= MAX_NAME && !text.contains(char::is_control)",
        "text.len() <= MAX_NAME",
        "unit record::",
    ),
    Break(
        "a_reason_of_two_lines", JOB,
        "printable(text, ' ').chars().take(MAX_NAME)",
        "text.chars().take(MAX_NAME)",
        "unit record::",
    ),
    Break(
        "a_device_with_a_comma", JOB,
        "|c: char| c == ',' || c.is_control()",
        "|c: char| c.is_control()",
        "unit record::",
    ),
    # Processes, locks, controllers.
    Break(
        "a_lock_that_two_have", "src/sys/lock.rs",
        "libc::flock(fd.as_raw_fd(), operation | libc::LOCK_NB)",
        "libc::flock(fd.as_raw_fd(), operation & 0 | libc::LOCK_SH | libc::LOCK_NB)",
        "unit record:: sys::lock",
    ),
    Break(
        "a_process_is_not_killed", "src/cgroup/kill.rs",
        "send(self.pid, self.pidfd.as_ref(), Signal::SIGKILL)",
        "send(self.pid, self.pidfd.as_ref(), Signal::SIGCONT)",
        "host left_behind whatever_users_make_below_is_ended_and_removed",
    ),
    Break(
        "a_directory_below_stays_frozen", "src/cgroup/kill.rs",
        "            thaw(dir, self.deadline);\n        }\n    }\n}\n",
        "            let _ = (dir, self.deadline);\n        }\n    }\n}\n",
        "host left_behind whatever_users_make_below_is_ended_and_removed",
    ),
    Break(
        "controllers_are_not_enabled", "src/fence/own.rs",
        "dirs.iter().skip(1).zip(&made) {\n        enable(dir, hierarchy, wanted, *new)?;",
        "dirs.iter().skip(1).zip(&made) {\n        let _ = (dir, new);",
        "host host huge_pages_are_limited_where_they_are_touched_and_where_they_are_reserved",
    ),
    Break(
        "a_unit_that_failed_still_holds", "src/janitor/holders.rs",
        '"inactive" | "failed" => Runs::No,',
        '"inactive" => Runs::No,',
        "unit janitor::",
    ),
    Break(
        "a_unit_that_began_again_holds_it", "src/janitor/holders.rs",
        "_ if is_id && now != invocation => Runs::No,",
        "_ if is_id && now != invocation => Runs::Yes,",
        "unit janitor::",
    ),
    # What happens to the job, and what it is told.
    Break(
        "a_refusal_that_sends_to_nobody", REFUSE,
        'format!("{text}{end} {NOT_YOURS}")',
        'format!("{text}{end}")',
        "unit launch::",
    ),
    Break(
        "a_limit_that_fails_is_borne", REFUSE,
        "if config.on_error.for_limit(limit) == OnError::Fail {",
        "if config.mode == crate::config::Mode::Off && config.on_error.for_limit(limit) == OnError::Fail {",
        "unit launch::",
    ),
    Break(
        "a_users_mistake_is_borne", REFUSE,
        "matches!(self, Self::General(_)) && general == OnError::Warn",
        "general == OnError::Warn",
        "unit launch::",
    ),
    Break(
        "off_is_not_off", "src/launch.rs",
        "Ok(loaded) if loaded.config.mode == Mode::Off => return Answer::Off,",
        "Ok(loaded) if loaded.config.mode == Mode::Off && loaded.file.is_some() && loaded.file.is_none() => return Answer::Off,",
        "unit launch::",
    ),
    Break(
        "observe_limits", "src/launch/begin.rs",
        "if config.mode == Mode::Enforce {",
        "if config.mode != Mode::Off {",
        "slurm observed",
    ),
    Break(
        "the_task_is_not_moved", "src/launch/attach.rs",
        "None => fence.attach(host, joining.pid, joining.task)?,",
        "None => Vec::new(),",
        "slurm tree_and_limits",
    ),
    Break(
        "a_watched_launch_reads_what_dead_steps_have_noted", "src/janitor/launch.rs",
        "EntryKind::Tracked if self.is_watched => !tracked::is_noted_in(self.records.dir(), &entry.name),",
        "",
        "host crowd a_watched_launch_does_not_look_at_what_dead_steps_have_noted_down",
    ),
    Break(
        "the_line_of_a_forgotten_step_stays", "src/janitor/launch.rs",
        "EntryKind::Tracked if self.is_watched => !tracked::is_noted_in(self.records.dir(), &entry.name),",
        "EntryKind::Tracked if self.is_watched => false,",
        "host crowd a_watched_launch_does_not_look_at_what_dead_steps_have_noted_down",
    ),
    Break(
        "the_kernel_hurries_whatever_an_administrator_wants", "src/launch/early_move.rs",
        "if !is_allowed(&self.kernel) || pwrite",
        "if pwrite",
        "unit launch::early_move",
    ),
    Break(
        "later_tasks_of_an_overlay_are_not_asked", "src/fence/attach.rs",
        "&& self.around.has_daemon && !self.has_overlay();",
        "&& self.around.has_daemon;",
        "host host where_the_scheduler_has_its_own_directories",
    ),
    Break(
        "the_end_removes_nothing", "src/launch/end.rs",
        "match fence.close(deadline) {",
        "let _ = deadline;\n        match Ok::<(), Error>(()) {",
        "slurm tree_and_limits",
    ),
    Break(
        "a_kill_for_memory_is_not_said", "src/launch/tell.rs",
        "    if unsaid == 0 {\n        return None;\n    }\n    let levels",
        "    if unsaid < u64::MAX {\n        return None;\n    }\n    let levels",
        "slurm memory_oom",
    ),
    Break(
        "a_refused_fork_is_not_said", "src/launch/tell.rs",
        "if of_job.is_none() && of_task.is_none() {",
        "if unsaid < u64::MAX {",
        "slurm fork_bomb",
    ),
    Break(
        "a_fence_without_its_limits_stays", "src/launch/begin.rs",
        "let _ = fence.close(deadline);",
        "let _ = (fence.key(), deadline);",
        "host life a_fence_that_cannot_be_limited_is_taken_back",
    ),
    Break(
        "a_link_leads_the_removal", "src/private/removal.rs",
        "OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK",
        "OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NONBLOCK",
        "unit names_of_all_kinds_go_and_what_they_point_to_stays",
    ),
    Break(
        "a_message_that_the_page_does_not_have", "src/report.rs",
        '|| "Ask for more memory".to_owned()',
        '|| "Request more memory".to_owned()',
        "host messages every_message",
    ),
    Break(
        "what_was_asked_is_forgotten", "src/fence/resume.rs",
        "shared.plan = Some(HandedOver { plan, asked_processes, noted });",
        "shared.plan = Some(HandedOver { plan, asked_processes: asked_processes.filter(|_| false), noted });",
        "host life who_could_raise_the_limit_is_said_by_every_process",
    ),
    # The usage log.
    Break(
        "what_is_known_of_a_job_is_forgotten", "src/fence/resume.rs",
        "noted.clone().or(&before.noted)",
        "{ let _ = &before.noted; noted.clone() }",
        "host usage what_is_known_of_a_job_outlives_each_process_of_its_life",
    ),
    Break(
        "half_a_line_stays", "src/report/usage_log.rs",
        "if whole < size {",
        "if whole < size && false {",
        "unit half_a_line_goes_before_the_next_comes",
    ),
    Break(
        "two_lines_of_one_dead_step", "src/janitor/ledger.rs",
        "(&step.key, step.opener) == (&found.key, found.opener)",
        "(&step.key, step.opener) == (&found.key, found.opener) && false",
        "host left_behind a_dead_step_has_one_line_in_the_usage_log_wherever_it_was",
    ),
    Break(
        "nothing_counts_what_is_not_limited", "src/fence/open.rs",
        'const COUNTED: [&str; 3] = ["memory", "pids", "io"];',
        'const COUNTED: [&str; 0] = [];',
        "host usage bytes_are_counted_where_they_go_to_a_disk processes_of_5_ms_are_counted_all",
    ),
    Break(
        "children_move_nothing", "src/sys/call_bytes.rs",
        'proc.open_file("self/io", OFlag::O_RDONLY)',
        'proc.open_file("thread-self/io", OFlag::O_RDONLY)',
        "host usage bytes_of_system_calls_are_those_of_all_that_were_waited_for",
    ),
    Break(
        "what_was_moved_before_counts", "src/sys/call_bytes.rs",
        "now.0.checked_sub(before.0)?",
        "now.0.max(before.0)",
        "unit what_a_childs_child_reads_and_writes_counts",
    ),
    Break(
        "adopted_processes_have_moved_nothing", "src/schedulers/slurm/spank/step.rs",
        "Some(_) if has_tasks => CallBytes::begin",
        "Some(_) => CallBytes::begin",
        "slurm usage_of_system_calls",
    ),
    Break(
        "cached_files_are_taken_for_need", "src/cgroup/events.rs",
        "Some(self.file?.saturating_sub(self.shared?))",
        "{ let _ = self.shared; self.file.map(|_| 0) }",
        "unit the_kernel_says_what_was_cached",
    ),
    Break(
        "the_dead_are_not_cleaned_up", "src/launch/begin.rs",
        "daemon.is_some_and(|daemon| clean_up_behind_others(host, config, schedulers, daemon, key));",
        "daemon.is_some_and(|daemon| false && clean_up_behind_others(host, config, schedulers, daemon, key));",
        "slurm next_launch_removes",
    ),
    # What cases of the tier check-all measure, and a shorter test notices.
    Break(
        "a_scavenger_is_no_scavenger", LIMITING,
        "limits::set_number(top, \"cpu\", limits::CPU_IDLE, 1)",
        "limits::set_number(top, \"cpu\", limits::CPU_IDLE, 0)",
        EXPLAINED,
    ),
    Break(
        "a_user_weighs_as_one_job", LIMITING,
        "let sum = sum.clamp(*crate::policy::WEIGHTS.start(), *crate::policy::WEIGHTS.end());\n    limits::set_number(user, \"cpu\",",
        "let sum = sum.clamp(10, 10);\n    limits::set_number(user, \"cpu\",",
        "host host a_user_weighs_what_the_users_jobs_weigh_and_less_when_one_has_ended",
    ),
    Break(
        "a_users_weight_stays_when_a_job_ends", "src/fence/close.rs",
        "if plan.weighs {",
        "if false {",
        "host host a_user_weighs_what_the_users_jobs_weigh_and_less_when_one_has_ended",
    ),
    Break(
        "both_policies_are_the_weight_alone", "src/config/values.rs",
        "!matches!(self, Self::Weight)",
        "matches!(self, Self::Quota)",
        EXPLAINED,
    ),
    Break(
        "a_part_of_a_cpu_is_a_tenth_of_it", "src/policy/quota.rs",
        "let quota_us = cpus.thousandths().saturating_mul(period_us) / 1000;\n    if quota_us < MIN_QUOTA_US {\n        let least",
        "let quota_us = cpus.thousandths().saturating_mul(period_us) / 10_000;\n    if quota_us < MIN_QUOTA_US {\n        let least",
        "unit policy::",
    ),
    # The door of C.
    Break(
        "two_members_of_a_struct_have_changed_places", C_STRUCTS,
        "    pub cpus: u64,\n    pub memory: u64,",
        "    pub memory: u64,\n    pub cpus: u64,",
        "host c_abi each_struct_and_number",
    ),
    Break(
        "what_a_newer_program_says_is_ignored", C_STRUCTS,
        "if unsafe { bytes.add(at).read() } != 0 {",
        "if unsafe { bytes.add(at).read() } != 0 && size == 0 {",
        C_LIFE,
    ),
    Break(
        "an_older_program_is_read_beyond_its_struct", C_STRUCTS,
        "bytes.copy_to_nonoverlapping(read.as_mut_ptr().cast::<u8>(), size.min(size_of::<T>()));",
        "bytes.copy_to_nonoverlapping(read.as_mut_ptr().cast::<u8>(), size_of::<T>());",
        C_LIFE,
    ),
    Break(
        "a_fence_is_opened_once_more_for_another_user", "src/doors/life.rs",
        "let answer = make(loaded.clone(), request, None, is_nobody_elses, |live| live.opened);",
        "let _ = is_nobody_elses;\n    let answer = make(loaded.clone(), request, None, |_| Ok(()), |live| live.opened);",
        C_LIFE,
    ),
    Break(
        "a_last_error_stays", C_ABI,
        "Some(Ok(())) => (AbiCode::Ok, String::new()),",
        "Some(Ok(())) => return AbiCode::Ok as c_int,",
        C_LIFE,
    ),
    # The hook of OpenPBS, and what MoM's spool says.
    Break("a_host_that_is_nobodys_alone", HOOK, "and not ignores_exclhost()", "", "hook ids_and_grants"),
    Break(
        "prologue_attaches_nothing", HOOK,
        "JOBS_STEP):\n        job.attach(os.getppid(), JOBS_STEP, ANY_USER)\n", "JOBS_STEP):\n        pass\n",
        "hook crashes_at_launch",
    ),
    Break(
        "launch_attaches_nothing", HOOK,
        "        job.attach(os.getppid(), step, ANY_USER)\n", "        pass\n",
        "hook life",
    ),
    Break(
        "launch_bears_a_failure", HOOK,
        "pbs.EXECJOB_LAUNCH: (launch, RERUN)", "pbs.EXECJOB_LAUNCH: (launch, GO_ON)",
        "hook a_refused_task",
    ),
    Break(
        "an_exception_leaves_the_hook", HOOK,
        "    except Exception as error:  # pylint: disable=broad-except\n        is_lasting", "    except Failed as error:\n        is_lasting",
        "hook each_call_fails",
    ),
    Break(
        "earlier_runs_stay", HOOK,
        "                job.close(other)\n", "                pass\n",
        "hook repeated_and_missing_events",
    ),
    Break(
        "each_begin_is_a_new_run", HOOK,
        "fences_of(job.usage(EACH_RUN))} - {job.run}", "fences_of(job.usage(EACH_RUN))}",
        "hook repeated_and_missing_events",
    ),
    Break(
        "other_hosts_chunks_count", HOOK,
        "part.vnode_name == host or ", "True or ",
        "hook ids_and_grants",
    ),
    Break(
        "anybody_is_attached", HOOK,
        "def attach(self, pid, step, flags=0):", "def attach(self, pid, step, flags=ANY_USER):",
        "hook strangers_are_not_attached",
    ),
    Break(
        "root_writes_for_the_user", HOOK,
        "        os.seteuid(self.uid)\n", "",
        "hook users_stderr_is_a_link",
    ),
    Break("a_refused_task_is_the_jobs", HOOK, "        or_else = REFUSE  # the", "        pass  # the", "hook a_refused_task"),
    Break(
        "what_cannot_be_decoded_runs", HOOK,
        "        os.kill(os.getppid(), signal.SIGKILL)\n", "        pass\n",
        "hook what_cannot_be_decoded",
    ),
    Break("hosts_of_chunks_are_not_heard", HOOK, "if hosts[index] == here", "if False", "hook ids_and_grants"),
    Break(
        "the_sites_prologue_is_lost", HOOK,
        'status = site_script(job, "prologue", pbs.EXECJOB_PROLOGUE, [], {})', "status = 0",
        "hook the_scripts_of_a_site",
    ),
    Break(
        "the_spool_is_where_the_configuration_says", HOOK,
        'os.environ["PBS_MOM_HOME"] = HOME', 'os.environ.pop("PBS_MOM_HOME", None)',
        "hook a_mom_with_another_directory",
    ),
    Break("a_spool_without_its_mom_says_no", PBS, "Runs::No if !is_locked(", "Runs::No if false && !is_locked(", "unit schedulers::pbs"),
    Break(
        "another_jobs_controllers_are_ours", "src/fence/resume.rs",
        "        fence.trees.retain(|tree| tree.own().is_none_or(|own| own.is_whole(&record.levels)));\n", "",
        "host life jobs_of_a_user_may_need_different_controllers",
    ),
    Break(
        "modes_go_by_the_umask", "src/sys/dir.rs",
        "& 0o777 == MODE.bits() {", "& 0o777 <= MODE.bits() {",
        "hook readers_of_limits",
    ),
    Break(
        "strangers_are_put_in", HOOK,
        "if of == job.id or session == int(job.job.session_id or -1):", "if True:",
        "hook crashes_at_launch_without_a_prologue",
    ),
    Break("a_job_about_to_begin_is_dead", PBS, "if age() < TO_BEGIN", "if age() < Duration::ZERO", "unit schedulers::pbs"),
    Break(
        "an_empty_fence_waits_as_long", "src/janitor/holders.rs",
        "age if age >= EMPTY && is_empty() => Duration::MAX,", "age if age >= EMPTY && is_empty() => age,",
        "hook a_begin_that_comes_to_nothing",
    ),
    Break(
        "a_fence_with_a_process_is_empty", "src/janitor/holders.rs",
        "!left.has_its_job()", "true || !left.has_its_job()",
        "hook a_begin_that_comes_to_nothing",
    ),
    Break(
        "sessions_of_tasks_are_not_heard", STRAYS,
        "if let Some(job) = spooled.sessions.get(&this.session) {", "if let Some(job) = spooled.sessions.get(&-1) {",
        "hook the_service_finds_processes_in_no_fence",
    ),
    Break(
        "descendants_of_tasks_are_not_found", STRAYS,
        "parent.id.pid > 1 && parent", "parent.id.pid < 1 && parent",
        "hook the_service_finds_processes_in_no_fence",
    ),
    Break(
        "whatever_a_task_file_says", "src/schedulers/pbs/tasks.rs",
        "(is_its && status == RUNNING && session > 1)", "(session > 1)",
        "unit schedulers::pbs::tasks",
    ),
    Break(
        "roots_processes_are_a_jobs", STRAYS,
        "if record.uid() != Some(uid) {", "if false {",
        "hook the_service_finds_processes_in_no_fence",
    ),
    Break(
        "a_name_alone_is_a_mom", "src/schedulers/pbs/tasks.rs",
        "program.starts_with(MOM)", "!program.is_empty()",
        "unit schedulers::pbs::tasks",
    ),
    Break(
        "a_users_directory_is_a_moms", "src/schedulers/pbs/tasks.rs",
        "(stat.st_uid == geteuid().as_raw() && stat.st_mode & 0o022 == 0).then_some(dir)", "Some(dir)",
        "unit schedulers::pbs::tasks",
    ),
    Break(
        "each_process_without_a_fence_is_an_error", "src/command/fetched.rs",
        "filter(|error| !failed.contains(error))", "filter(|_| true)",
        "hook the_service_finds_processes_in_no_fence",
    ),
    Break(
        "a_host_without_cgroups_has_no_first_event", "src/doors/life.rs",
        ": OnError says what becomes of its jobs.\n    if found.is_empty() {", ": OnError says what becomes of its jobs.\n    if false {",
        "hook a_host_without_cgroups",
    ),
    Break(
        "other_limits_take_a_jobs_cpus", "src/doors/life.rs",
        "before.filter(|_| granted.chooses_cores && granted.cpus.is_none())", "before.filter(|_| false)",
        "host life a_job_keeps_its_cpus_whatever_others_do",
    ),
    Break(
        "a_later_step_waits_for_others_choices", "src/doors/cores.rs",
        "    if has.is_empty() {\n        lock", "    {\n        lock",
        "host life a_job_keeps_its_cpus_whatever_others_do",
    ),
    Break(
        "a_step_has_what_its_job_has_given_back", "src/doors/cores.rs",
        "Ok(left.filter(|left| !left.is_empty() && left.len() < cpus.len()))", "Ok(left.filter(|left| left.len() > cpus.len()))",
        "host life a_step_has_no_cpu_that_its_job_has_given_back_meanwhile",
    ),
    Break(
        "a_mistake_closes_nothing_silently", "src/doors/c_abi.rs",
        "            usable(loaded)?;\n        }\n        for one in all", "        }\n        for one in all",
        "host c_abi a_configuration_with_a_mistake",
    ),
    Break(
        "a_probe_without_a_fence_is_no_fault", HOOK,
        "fault = Failed(said, None) if code == UNFENCED else None", "fault = None",
        "hook a_host_that_can_fence_no_job",
    ),
    Break(
        "an_unanswered_comment_is_none", HOOK,
        "            if said:\n                vnode.comment", "            if True:\n                vnode.comment",
        "hook a_host_that_can_fence_no_job",
    ),
    Break(
        "address_space_without_a_limit_of_memory", HOOK,
        'any(fence["memory_limit_bytes"] for fence', "any(True for fence",
        "hook address_space",
    ),
    Break(
        "a_job_from_before_the_hook_stays_outside", HOOK,
        "        if job.open(event, JOBS_STEP):\n            job.attach(", "        if False:\n            job.attach(",
        "hook a_task_of_a_job_that_began_without_the_hook",
    ),
    Break(
        "a_mistake_keeps_a_fence", "src/doors/c_abi/answer.rs",
        "errors.sound().ok_or_else(", "None.ok_or_else(",
        "hook a_mistake_at_the_end",
    ),
    Break(
        "a_mistake_of_the_hooks_keeps_a_fence", HOOK,
        "        if mistake and or_else != GO_ON:\n", "        if mistake:\n",
        "hook a_mistake_at_the_end",
    ),
    Break(
        "what_passes_is_tried_at_once", HOOK,
        "            event.job.Execution_Time = int(time.time()) + AGAIN\n", "            pass\n",
        "hook each_call_fails",
    ),
    Break(
        "other_hosts_use_no_cpus", HOOK,
        "if self.job.in_ms_mom() else time.time() - int(self.job.stime or time.time())", "or 0",
        "hook used_on_another_host",
    ),
    Break("a_dead_job_lives", PBS, "{ Runs::Yes } else { Runs::No }", "{ Runs::Yes } else { Runs::Yes }", "unit schedulers::pbs"),
    Break("everybody_says_where_the_spool_is", PBS, "metadata.mode() & 0o022 != 0", "false", "unit schedulers::pbs"),
    Break(
        "age_of_nothing", "src/record/steps.rs",
        ".saturating_sub(written))", ".saturating_sub(written).mul_f32(0.0))",
        "hook mom_dies",
    ),
    # What is said of fences that live, and of jobs that have ended.
    Break(
        "users_see_all", "src/command/living.rs",
        "let uid = if own.is_root() { user } else { Some(own.as_raw()) };",
        "let uid = user;",
        "host usage_commands a_user_sees_only_its_own",
    ),
    Break(
        "report_is_everybodys", "src/command/report/output.rs",
        "if nix::unistd::geteuid().is_root() {\n        return error.to_string().into();",
        "if true {\n        return error.to_string().into();",
        "host usage_commands a_user_sees_only_its_own",
    ),
    Break(
        "oldest_run_is_reported", "src/command/report.rs",
        "    runs.reverse();\n", "",
        "host usage_commands a_report_is_of_one_run",
    ),
    Break(
        "repeated_step_is_the_same_run", "src/command/report/runs.rs",
        " || step.run != next.run || step.step == next.step", "",
        "host usage_commands a_report_is_of_one_run",
    ),
    Break(
        "job_has_the_last_steps_cpu_time", "src/command/report/total.rs",
        "Usage::with);", "|last, _| last.without_disks());",
        "host usage_commands a_report_has_what_was_used",
    ),
    Break(
        "hint_for_a_script_that_starts_tasks", "src/schedulers/slurm/spank/environment.rs",
        "config.mode == Mode::Enforce && !starts_tasks;",
        "config.mode == Mode::Enforce && (!starts_tasks || true);",
        "slurm thread_hints",
    ),
    Break(
        "hint_for_a_job_of_two_slots", "src/schedulers/gridengine/command/shepherd/environment.rs",
        "hint.filter(|_| is_one_slot && !has_users)",
        "hint.filter(|_| !has_users)",
        "unit a_user_who_says_how_many_threads_is_not_told",
    ),
    Break(
        "hints_that_nobody_has_asked_for", KEYS,
        "thread_hints: bool = false,",
        "thread_hints: bool = true,",
        "slurm thread_hints",
    ),
    Break(
        "gpus_of_others_that_are_not_denied", "src/cgroup/devices.rs",
        "Ok(Set::but(others(device, numbers)?))",
        "Ok(Set::but(Vec::new()))",
        "host devices gpus_of_others_on_v1 gpus_of_others_on_cgroup2",
    ),
    Break(
        "an_open_set_that_is_closed", "src/cgroup/devices/bpf.rs",
        "i32::from(set.is_open)",
        "0",
        "host devices gpus_of_others_on_cgroup2",
    ),
    Break(
        "an_open_set_that_opens_a_closed_one", "src/cgroup/devices/set.rs",
        "(true, false) => Some(other),",
        "(true, false) => return Self::but(denied()),",
        "unit an_open_list_takes_from_a_closed_one",
    ),
    Break(
        "gpus_that_nobody_has_noted_down", "src/schedulers/slurm/spank/facts.rs",
        "if !has_said && has_gpus() {",
        "if false {",
        "slurm gpus_that_no_prolog_has_noted_down",
    ),
    Break(
        "a_spool_that_is_looked_at_for_ever", "src/schedulers/gridengine/command/shepherd/process.rs",
        "if self.has_pid && self.is_begun {",
        "if false {",
        "unit the_spool_is_looked_at_until_the_job_has_begun",
    ),
    Break("a_warning_wakes_a_suspended_job", "src/schedulers/gridengine/command/shepherd/process.rs", "![Signal::SIGUSR1, Signal::SIGUSR2].contains(&signal)", "true",
          "unit a_warning_wakes_no_job"),
    Break("a_shepherd_beside_whoever_is_the_parent_later", "src/schedulers/gridengine/command/shepherd/process.rs", "        // execd looks for this name with ps(1).\n",
          "        let program = &self::program()?;\n",
          "host capacity a_job_of_grid_engine_has_its_shepherd_though_execd_dies_meanwhile"),
    Break("words_of_a_user_without_a_fence", CLIENT, "if is_users(key) {", "if false {",
          "unit nothing_of_the_users_runs_without_a_fence"),
    Break("a_users_process_without_a_fence", CLIENT, '        ("job_owner", administrator),\n', "", "unit nothing_of_the_users_runs_without_a_fence"),
    Break("a_line_of_a_users_behind_a_clients_address", SPOOL, 'None if before == CALLED => SESSIONS', 'None if before == CALLED => true || SESSIONS',
          "unit nothing_of_the_users_runs_without_a_fence"),
    Break("qmaster_is_told_what_it_knows", "src/schedulers/gridengine/command/qconf.rs", "before.as_deref().is_some_and(|before| bytes(before) == bytes(amount))", "false",
          "unit what_is_so_already_is_left_alone"),
    Break("a_sensor_ends_at_what_is_no_text", "src/schedulers/gridengine/command/sensor.rs", "for question in questions.split(b'\\n') {",
          "for question in questions.lines().map(|line| line.map(String::into_bytes)) {", "unit a_report_for_each_line_until_quit"),
    Break(
        "series_of_a_restart_is_lost", "src/command/sample.rs",
        "if !self.has_taken_over {",
        "if false {",
        "host samples a_series_outlives_jobfence_hold",
    ),
    Break(
        "series_of_a_step_that_was_not_seen_ends", "src/command/sample.rs",
        "let is_over = series.has_ended();",
        "let is_over = !steps.iter().any(|step| described(step).name == series.name);",
        "host samples a_sample_that_fails_loses_nothing",
    ),
    Break(
        "series_where_everybody_writes", "src/command/series.rs",
        " || stat.st_mode & 0o022 != 0",
        "",
        "host samples a_file_that_a_user_has_planted_is_not_followed",
    ),
    Break(
        "series_for_everybody", "src/command/acl.rs",
        "(OTHER, 0, NO_ID)",
        "(OTHER, READ, NO_ID)",
        "host samples a_series_shows_what_a_job_did_when",
    ),
    Break(
        "series_is_a_new_file_each_time", "src/command/series.rs",
        "let exchanged = renameat2(dir, new.as_str(), dir, name, RenameFlags::RENAME_EXCHANGE);",
        "let exchanged = renameat2(dir, new.as_str(), dir, name, RenameFlags::empty());",
        "host samples a_user_fills_no_file_system_with_a_series",
    ),
    Break(
        "series_that_ended_keeps_room", "src/command/series.rs",
        "        let _ = File::from(file).set_len(0);\n",
        "        drop(file);\n",
        "host samples a_user_fills_no_file_system_with_a_series",
    ),
    Break(
        "users_file_of_a_series_stays", "src/command/series.rs",
        "found.is_ok_and(|found| found.st_uid != 0)",
        "found.is_err()",
        "host samples a_file_of_a_users_goes",
    ),
    Break("granted_huge_pages_do_not_close", POLICY, "granted().closed()", "granted()", "unit granted_huge_pages"),
    Break("the_rest_of_huge_pages_is_not_zero", "src/cgroup/huge_pages.rs", ".or(self.is_closed.then_some(0))", "", "unit the_lower_limit_of_each_size"),
    Break("cores_are_halved", CORES, "if chosen.len() + core.len() <= wanted {", "if chosen.len() + core.len() < wanted {", "unit doors::cores"),
    Break("cores_are_of_two_nodes", CORES, ".min_by_key(|node| node.len())", ".max_by_key(|node| node.len())", "unit doors::cores"),
    Break("cores_are_everybodys", CORES, ".count() <= jobs)", ".count() <= jobs + 1)", "unit doors::cores"),
    Break("hpmem_is_not_granted", HOOK, 'pages = (pages or 0) + size_of(resources["hpmem"])', "pages = pages or 0", "hook granted_huge_pages nonsense"),
    Break("resize_asks_first", HOOK, 'job.library.call("limit", job.fence(), job.grant(event))', 'job.usage() and job.library.call("limit", job.fence(), job.grant(event))', "hook time_in_the_library"),
    Break(
        "a_jobs_fault_sets_the_node_offline", HOOK, "fault = fault_of_the_host(library) if library else problem", "fault = problem",
        "hook a_host_that_can_fence_no_job",
    ),
    Break(
        "address_space_stays_moms", HOOK, "            limit_address_space(job)\n", "            pass\n", "hook address_space",
    ),
    Break(
        "the_whole_host_has_the_default", HOOK, 'if is_alone and not memory and', "if False and not memory and",
        "hook a_default_and_the_whole_host",
    ),
    Break(
        "card_has_no_signal", "hooks/pbs/jobfence.py",
        "else max(0, status - OF_A_SIGNAL)",
        "else 0",
        "hook card",
    ),
    Break(
        "names_are_written_as_they_are", "src/printable.rs",
        "!c.is_control() && !directs",
        "!directs",
        "host usage_commands names_do_nothing_to_a_terminal",
    ),
    Break(
        "garbage_in_the_log_is_an_end", "src/command/report/log.rs",
        "                Some(whole) => self.line(whole),",
        "                Some(whole) if std::str::from_utf8(whole).is_err() => return Ok(()),\n                Some(whole) => self.line(whole),",
        "host usage_commands what_is_no_line_of_the_log_is_passed_over",
    ),
    Break(
        "cpu_now_is_since_the_beginning", "src/command/living.rs",
        "new.saturating_sub(*cpu).as_secs_f64() / passed",
        "new.as_secs_f64() / passed",
        "host usage_commands what_lives_is_listed_and_shown",
    ),
    Break(
        "top_is_not_sorted_by_keys", "src/command/top/list.rs",
        "(self.sorted_by, self.is_reversed) = (*column, false);",
        "(_, self.is_reversed) = (*column, false);",
        "host usage_commands top_is_sorted_by_keys",
    ),
    Break(
        "top_dies_of_a_signal", "src/command/top/screen.rs",
        "if IS_ENDED.load(Ordering::Relaxed) {", "if IS_ENDED.load(Ordering::Relaxed) && false {",
        "host usage_commands top_puts_the_terminal_right_when_a_signal_ends_it",
    ),
    Break("top_adds_up_what_it_knows", "src/command/top/jobs.rs", "steps.iter().map(of).sum()", "Some(steps.iter().filter_map(of).sum())",
          "unit top::"),
    Break("top_cuts_columns", "src/command/top/fit.rs", "> width + 1 {", "> width + 9 {", "unit top::"),
    Break("top_loses_its_job_in_another_order", "src/command/top/list.rs", "one.identity == *job", "one.number == self.cursor", "unit top::"),
    Break("top_does_not_see_a_new_size", "src/command/top/screen.rs", "if self.shown.area != next.area {", "if false {",
          "host usage_commands top_is_sorted_by_keys"),
    Break("colours_that_nobody_wants", "src/command/table.rs", "is_none_or(|value| value.is_empty())", "is_none_or(|_| true)",
          "host usage_commands check_has_its_verdict"),
    Break(
        "top_writes_commands_into_a_pipe", "src/command/top.rs",
        "if options.json || !io::stdout().is_terminal() {", "if options.json {",
        "host usage_commands what_lives_is_listed_and_shown",
    ),
    Break(
        "slurms_steps_are_rows_of_their_own", "src/fence/living.rs",
        "let is_overlay = place.is_overlay || step.places.iter().all(|place| place.is_overlay);",
        "let is_overlay = false;",
        "unit slurms_are_found_by_its_own_names ours_are_found_by_their_names",
    ),
    Break(
        "slurms_component_is_in_the_name", "src/fence/living.rs",
        "let plain = plain.split('+').next().unwrap_or(plain).to_owned();",
        "let plain = plain.to_owned();",
        "unit slurms_are_found_by_its_own_names",
    ),
    # A card that is wrong, or that nobody wanted.
    Break(
        "a_long_name_of_a_job_stops_it", "src/schedulers/slurm/spank/facts.rs",
        'spank.getenv(c"SLURM_JOB_NAME").ok().flatten()', 'spank.getenv(c"SLURM_JOB_NAME")?',
        "host card a_jobs_name",
    ),
    Break(
        "a_name_of_a_job_without_bound", "src/facts.rs",
        "const LONGEST_JOB_NAME: usize = 200;", "const LONGEST_JOB_NAME: usize = 2000;",
        "unit a_jobs_name_is_its_users_and_bounded",
    ),
    Break(
        "a_steps_name_for_the_jobs", "src/command/report/summary/runs.rs",
        "run.name.is_none() || line.step == SCRIPT", "run.name.is_none()",
        "unit the_name_of_a_run_is_that_of_its_script",
    ),
    Break(
        "a_percent_sign_is_no_jobs_id", CARDS_WORDS,
        'text.split("%%").map(|part| part.replace("%j", job))', 'text.split("%%").map(str::to_owned)',
        "unit the_sites_text_is_the_last_line_of_a_card",
    ),
    Break(
        "a_card_of_the_batch_step_alone", "src/fence/observe.rs",
        "let (Ok(job), hierarchy) = (tree.job(), tree.hierarchy())", "let (Ok(job), hierarchy) = (tree.step(), tree.hierarchy())",
        "slurm card_of_a_failed_job",
    ),
    Break(
        "a_card_in_any_locale", CARD_DOOR,
        "is_utf8: card::is_utf8(|name| variable(spank, &CString::new(name).ok()?)),", "is_utf8: true,",
        "slurm card_of_a_failed_job",
    ),
    Break("no_kill_on_a_card", CARD_DOOR, "usage.oom_kills.or(Some(end.reported.kills))", "None", "slurm card_after_a_kill"),
    Break(
        "the_sites_word_on_the_card_counts", "src/schedulers/slurm/spank/step.rs",
        "requests.usage_card().unwrap_or(resolved.config.usage_card)", "resolved.config.usage_card",
        "slurm whose_word_on_the_card_counts",
    ),
    Break(
        "a_card_of_each_step", CARD_DOOR,
        "kind == StepKind::Batch && when != UsageCard::Never", "when != UsageCard::Never",
        "slurm whose_word_on_the_card_counts",
    ),
    Break(
        "a_card_for_each_short_job", CARD,
        "    if says_something {\n", "    if true {\n",
        "slurm cards_of_an_array",
    ),
    Break("a_line_that_is_too_long", CARDS_WORDS, "if used + word.len() <= WIDTH {", "if used + word.len() <= WIDTH + 1 {", "unit report::card"),
    Break(
        "advice_that_fails", ADVICE,
        "let less = asked(u128::from(peak) * WITH_RESERVE / 100)?;", "let less = asked(u128::from(peak) * 4 / 5)?;",
        "unit report::card",
    ),
    Break(
        "advice_below_a_lower_limit", ADVICE,
        "bytes.checked_mul(granted.into())?.div_ceil(u128::from(most.max(1)))", "bytes",
        "unit report::card",
    ),
    Break("advice_after_a_failure", ADVICE, "&& !self.was_stopped()\n            && self.others", "&& self.others", "unit report::card"),
    Break(
        "advice_without_a_node", "src/report/nodes.rs", "self.silent.is_empty() && !self.is_unfinished", "true",
        "unit report::card",
    ),
    Break(
        "a_step_whose_srun_was_killed", "src/schedulers/slurm/spank/hand_over.rs", "nodes.is_unfinished |= self.is_others_mark(name);",
        "nodes.is_unfinished |= self.is_others_mark(name) && false;", "nodes card_without_a_step_whose_srun_was_killed",
    ),
    Break(
        "a_dead_step_that_is_nobodys", "src/schedulers/slurm.rs", "job.as_str().parse::<u32>().is_ok()",
        "job.as_str().parse::<u32>().is_err()", "slurm usage_of_the_dead",
    ),
    Break(
        "a_log_that_two_threads_set", C_ABI, "!*IS_OURS.get_or_init(|| log::set_logger(&CallersLog).is_ok())",
        "IS_OURS.get().is_none() && !(log::set_logger(&CallersLog).is_ok() && {\n"
        "            std::thread::sleep(Duration::from_millis(100));\n"
        "            IS_OURS.set(true).is_ok()\n        })",
        C_LIFE,
    ),
    Break(
        "a_link_to_a_descriptor", "src/sys/users_dir.rs", "how.resolve = libc::RESOLVE_NO_MAGICLINKS;", "how.resolve = 0;",
        "unit users_dir",
    ),
    Break("advice_about_other_nodes", ADVICE, "self.nodes == Some(1), Nodes", "true, Nodes", "unit report::card"),
    Break(
        "a_text_that_a_terminal_obeys", CARDS_WORDS,
        "if c.is_ascii_graphic() || c == ' ' { c } else { '?' }", "if c.is_control() { '?' } else { c }",
        "unit report::card",
    ),
    Break("a_card_is_a_limit", "src/requests.rs", "request.limit.is_some() && [&self.job", "[&self.job", "unit requests"),
    Break(
        "run_has_no_card", "src/command/run.rs", "for line in &ended.card {", "for line in &ended.card[..0] {",
        "host cli run_ends_with_a_card_where_that_is_wanted",
    ),
    Break(
        "run_counts_by_two_quotas", "src/doors/run.rs", "plan.job.cpu = None;", "plan.job.cpu = plan.step.cpu;",
        "host cli run_shows_a_person_the_fence_and_what_was_used",
    ),
    Break(
        "a_fence_that_no_person_sees", "src/command/run.rs", "if has_reader || options.verbose {", "if options.verbose {",
        "host cli run_shows_a_person_the_fence_and_what_was_used",
    ),
    Break(
        "a_person_where_none_is", "src/command/run.rs", "!options.quiet && io::stderr().is_terminal();", "!options.quiet;",
        "host cli run_shows_a_person_the_fence_and_what_was_used",
    ),
    # Grid Engine.
    Break("a_second_value_in_the_spool", SPOOL, "values.all(|other| other == value)", "values.by_ref().count() < 9", "unit gridengine::spool"),
    Break("a_key_that_ends_at_the_sign_alone", SPOOL, "const ENDS_OF_KEY: [char; 2] = [' ', '='];", "const ENDS_OF_KEY: [char; 2] = ['=', '='];", "unit gridengine::spool"),
    Break("anything_behind_a_users_value", SPOOL, "Some((_, behind)) => key == *behind,", "Some((_, behind)) => !behind.is_empty(),", "unit gridengine::spool"),
    Break("anything_behind_an_argument", SPOOL, "!before.starts_with(ARGUMENT) ||", "!before.starts_with(ARGUMENT) || true ||", "unit gridengine::spool"),
    Break("a_line_in_pieces", SPOOL, "if line.len() >= PIECE {", "if line.len() > 10 * PIECE {", "unit gridengine::spool"),
    Break("a_slave_task_with_the_jobs_slots", SPOOL, "Ok(Some(found).filter(|found| *found > 0))", "Ok(Some(found.max(number)))", "unit gridengine::spool"),
    Break("a_slave_task_of_another_host", SPOOL, ".filter(|_| is_it)", ".filter(|_| is_it || true)", "unit gridengine::spool"),
    Break("microseconds_as_seconds", SPOOL, "time > LAST_SECOND", "time == LAST_SECOND", "unit gridengine::spool"),
    Break("resident_memory_that_is_not_heard", SPOOL, '"s_data", "h_rss", "s_rss"]', '"s_data", "h_cpu", "s_cpu"]', "unit gridengine::spool"),
    Break("the_cache_as_a_peak", "src/schedulers/gridengine/command/shepherd/usage.rs", ".saturating_sub(used.memory_file.unwrap_or(0))", "", "unit shepherd::usage"),
    Break("requests_lost_by_a_mistake", "src/schedulers/gridengine/command/jsv.rs", "self.memory = of(list, |_, amount| bytes(amount).is_some());", "", "unit jsv"),
    Break("a_series_for_each_part", "src/command/sample.rs", "self.know_again(config, &mut new);", "let _ = &mut new;", "host samples a_step_that_is_seen_in_part_has_one_series"),
    Break("a_slave_task_that_a_user_says", SPOOL, ".filter(|task| *task == directory)", "", "unit gridengine::spool"),
    Break("memory_of_one_slot", SPOOL, "_ => Share::Here { amount, times: self.slots },", "_ => Share::Here { amount, times: 1 },", "unit gridengine::spool"),
    Break("a_parallel_environment_that_is_unknown", SPOOL, 'pe: Fact::Known(named("pe")?),', "pe: Fact::Unknown,", "unit gridengine::spool"),
    Break("an_octal_amount_as_a_decimal_one", "src/schedulers/gridengine/amount.rs", "of_base(number, 8)", "of_base(number, 10)", "unit gridengine::amount"),
    Break("an_amount_that_is_no_limit", SPOOL, "number(text).ok_or_else(|| NotFenced::Asked(Error::new(wrong())))", "Ok(number(text).unwrap_or_else(|| (!wrong().is_empty()).then_some(1e18)))", "unit gridengine::spool"),
    Break("nonsense_that_onerror_bears", SPOOL, "Err(NotFenced::Asked(twice))", "Err(twice.into())", "unit gridengine::spool"),
    Break("an_account_that_a_user_writes", CANDIDATES, "match fact.counts(users_are_trusted) {", "match fact.counts(users_are_trusted | true) {", "unit config::"),
    Break("a_notice_that_is_not_heard", SPOOL, 'is_none_or(|seconds| seconds == "0")', "is_none_or(|_| true)", "unit gridengine::spool"),
    # HTCondor.
    Break("a_whole_amount_for_each_slot", SPOOL, "PerSlot::Job | PerSlot::Host => Share::Here { amount, times: 1 },", "PerSlot::Job | PerSlot::Host => Share::Here { amount, times: self.slots },", "unit gridengine::spool"),
    Break("a_jobs_amount_on_each_host", SPOOL, "PerSlot::Job if !self.is_master_host", "PerSlot::Job if false && !self.is_master_host", "unit gridengine::spool"),
    Break("a_default_that_nobody_debits", "src/schedulers/gridengine/complexes.rs", "given.contains(complex.name.as_str())", "!given.contains(\"\")", "unit gridengine::complexes"),
    Break("a_default_beside_a_request", "src/schedulers/gridengine/complexes.rs", "debit.default > 0.0 && !is_asked)", "debit.default > 0.0 && (!is_asked || true))", "unit gridengine"),
    Break("debits_of_long_ago", "src/schedulers/gridengine/command/shepherd/debits.rs", ".filter(|age| *age < lasts)", ".filter(|age| *age < lasts * 9)", "unit shepherd::debits"),
    Break("another_jsv_that_is_not_heard", "src/schedulers/gridengine/command/jsv.rs", "job.hear_other(&String::from_utf8_lossy(line), &mut wanted);", "let _ = (&mut *job, &mut wanted);", "unit jsv::"),
    Break("another_jsv_with_forged_lines", "src/schedulers/gridengine/command/jsv.rs", "Some(other) if !job.is_forged =>", "Some(other) =>", "unit jsv::"),
    Break("a_complaint_of_another_jsv", "src/schedulers/gridengine/command/jsv/theirs.rs", "if !complaint.is_empty() {", "if complaint.len() > 99 {", "unit jsv::"),
    Break("a_script_that_only_speaks_of_us", "src/command/check/daemon.rs", ".filter(|line| !line.trim_start().starts_with('#'))", "", "unit check::daemon"),
    Break("a_wrong_wish_that_is_not_heard", SPOOL, "request.read(&name, value.as_bytes(), &mut asked).map_err(NotFenced::Asked)?;", "let _ = request.read(&name, value.as_bytes(), &mut asked);", "unit gridengine::spool"),
    Break("nobody_is_told_of_a_launch", EARLY_MOVE, "let _ = socket.send_to(&[], run_dir.join(WATCHER).join(SOCKET));", "", "unit early_move"),
    Break("a_launch_that_reads_all_lines", LONG_ROLL, "if size <= SHORT || is_wanted(hands) {", "if true {", "unit roll"),
    Break("a_window_that_is_the_last", LONG_ROLL, "if until >= self.size { 0 } else { until }", "0", "unit roll"),
    Break(
        "a_long_roll_of_which_a_third_is_looked_at", "src/janitor/launch.rs", "if !roll.is_whole()", "if false",
        "host crowd who_finds_something_in_a_long_roll_looks_at_all_of_it",
    ),
    Break("the_mounts_are_always_read", LAYOUT, "plainly_v1(proc, &dir)", "None", "unit layout"),
    Break("a_hierarchy_that_may_be_a_containers", LAYOUT, 'format!("{place}/release_agent")', 'format!("{place}")', "unit layout"),
    Break(
        "a_job_with_another_step_is_taken_for_new", "src/fence/own.rs", "stat.st_nlink == ONE_CHILD", "stat.st_nlink >= ONE_CHILD",
        "host host a_step_that_made_its_job_sees_what_another_has_limited_meanwhile",
    ),
    Break("an_unwinder_that_is_not_found", "src/sys/unwinder.rs", 'c"libgcc_s.so.1"', 'c"libgcc_s.so.0"', "host shared_object a_panic_is_an_error"),
    Break(
        "a_step_that_is_taken_for_removed", "src/fence/own.rs", "let is_gone = gone.iter().any(|gone| std::ptr::eq(*gone, *tree));",
        "let is_gone = true;", "host life only_the_holders_end_ends_it",
    ),
    Break("few_are_stopped", "src/cgroup/kill.rs", "for _ in 0..UNFROZEN {", "for _ in 0..UNFROZEN * 0 {", "host left_behind few_processes"),
    Break("stopped_processes_are_waited_for", "src/cgroup/kill.rs", "victim.wait(moment)) {\n            return false;",
          "victim.wait(moment)) {\n            return true;", "host left_behind few_processes"),
    Break("stopped_in_the_freezer_alone", "src/fence/own.rs", 'let freezer = hierarchy.has("freezer").then_some(&dir);', "let freezer = None;",
          "host left_behind who_is_stopped_in_the_freezer_alone"),
    Break("processes_below_are_forgotten", "src/cgroup/kill.rs", "found.len() <= FEW && walk::has_none_below(dir)", "found.len() <= FEW",
          "host left_behind whatever_users_make_below"),
    Break("many_who_die_are_signalled", "src/cgroup/kill.rs", "FEW < left && left <", "left > left && left <", "unit kill"),
    Break("who_does_not_die_is_waited_for", "src/cgroup/kill.rs", "FEW < left && left <", "FEW < left || left <", "unit kill"),
    Break("a_lock_that_nobody_wants", EARLY_MOVE, "if !is_asked {", "if false {", "unit early_move"),
    Break("setup_replaces_a_sites_starter", CONDOR_SETUP, "&& !is_stock && !is_ours(&value)", "&& is_stock && !is_ours(&value)", "unit htcondor::setup"),
    Break("setup_overwrites_a_sites_lines", CONDOR_SETUP, "!self.file.is_empty() && !is_own", "false && !is_own", "unit htcondor::setup"),
    Break("setup_forgets_its_own_line", CONDOR_SETUP, "(!is_done || self.has_line(key))", "!is_done", "unit htcondor::setup"),
    Break("setup_takes_back_anothers_line", GRIDENGINE_SETUP, r'None => format!("{ours}d")', r'None => format!("/^{key} /d")', "unit gridengine::setup"),
    Break("setup_breaks_a_list", GRIDENGINE_SETUP, "s/, *\\\\\\n */,/;", "", "unit gridengine::setup"),
    Break("setup_commands_the_server_from_any_host", PBS_SETUP, "if !facts.roles.server {", "if false {", "unit pbs::setup"),
    Break("setup_deletes_a_sites_hook", PBS_SETUP, "self.roles.server && self.ours().is_none() &&", "false &&", "unit pbs::setup"),
    Break("setup_undo_deletes_another_hook", PBS_SETUP, 'if [ -s "$2" ] && !', "if false && !", "unit pbs::setup"),
    Break("setup_beside_pbs_cgroups", PBS_SETUP, r'hook.name == "pbs_cgroups" && hook.is_enabled()', r'hook.name == "pbs_cgroups" && !hook.is_enabled()', "unit pbs::setup"),
    Break("half_a_message", SLOT_AD, "if *is_last == 1 {", "if *is_last <= 1 {", "unit htcondor::slot_ad"),
    Break("the_first_of_two", SLOT_AD, "self.0.iter().rev().find(", "self.0.iter().find(", "unit htcondor::slot_ad"),
    Break("a_text_that_goes_on", "src/schedulers/htcondor/value.rs", "is_escaped = *c == '\\\\' && !is_escaped;", "is_escaped = false;", "unit htcondor::slot_ad"),
    Break("a_gpu_that_is_offline", "src/schedulers/htcondor/slot_gpus.rs", "(_, 0) => return", "(true, 0) => return", "unit htcondor::slot_gpus"),
    Break("an_attribute_that_no_startd_has", SLOT_AD, 'text("RemoteUser")?', 'text("JobUser")?', "unit what_a_startd_has_said_is_understood"),
    Break("nonsense_in_a_local_job_that_onerror_bears", JOB_AD, "Self::read(text).map_err(NotFenced::Asked)",
          "Self::read(text).map_err(NotFenced::General)", "host facts nonsense_of_htcondors_becomes_what_the_page_says"),
    Break("a_local_ad_that_has_no_room", "src/schedulers/htcondor/command/starter/local.rs", "if is_full(pipe, size) {", "if false {",
          "unit nobody_gets_rid_of_a_fence_by_an_ad_that_has_no_room"),
    Break("a_forged_slots_job_is_unknown", "src/schedulers/htcondor/command/starter.rs", "Err(why @ NotFenced::Asked(_)) => return Err(why),", "",
          "unit what_a_user_has_written_is_refused"),
    Break("a_wrong_option_that_onerror_bears", "src/schedulers/slurm/spank/step.rs", "return Err(NotFenced::Asked(error)),",
          "return Err(NotFenced::General(error)),", "host facts what_slurmstepd_does_not_tell_becomes_what_the_page_says"),
    Break("a_partition_from_a_users_environment", "src/schedulers/slurm/spank/facts.rs", "kind == StepKind::Batch && asked.job", "asked.job",
          "slurm partition_without_prolog"),
    # Programs that are asked, and a number that has become another process's.
    Break("a_helper_is_read_when_it_has_ended", PROGRAM, "let more = read_some(&mut out, said)?;",
          "let more = has_ended && read_some(&mut out, said)?;", "unit sys::program"),
    Break("a_helper_has_our_environment", PROGRAM, ".env_clear()", "", "unit sys::program"),
    Break("a_helper_has_our_descriptors", PROGRAM, "let _ = leave_descriptors();", "",
          "unit sys::program"),
    Break("a_child_begins_before_it_has_its_place", "src/sys/child.rs", "wait_for_place(&wait, parent).and_then(|()| become_program())",
          "become_program()", "unit sys::child"),
    Break("a_panic_goes_on_in_a_copy_of_the_parent", "src/sys/child.rs", "    let _at_panic = AtPanic;\n", "", "unit sys::child"),
    Break("the_branch_of_scavengers_is_walked_twice", "src/fence/living.rs", "above.unwrap_or(&record.base)", "above.map_or(record.base.as_str(), |_| record.base.as_str())",
          "unit fence::living"),
    Break("a_job_is_not_known_by_its_other_name", "src/fence/living.rs", "Some(job) if self.wanted.other_name.as_ref() == Some(&name) =>",
          "Some(job) if name.is_empty() =>", "unit fence::living"),
    Break("what_a_helper_has_started_lives", PROGRAM, "let _ = killpg(self.pid(), Signal::SIGKILL);",
          "let _ = nix::sys::signal::kill(self.pid(), Signal::SIGKILL);", "unit sys::program"),
    Break("who_keeps_a_helpers_output_is_waited_for", PROGRAM, " || has_ended && !more", "", "unit sys::program"),
    Break("a_stranger_stays_in_the_fence", "src/fence/attach.rs", "match stranger_remains(host, uid, instead_of) {",
          "match None::<String> {", "host life who_gets_the_number_of_a_process_that_is_put_in_is_put_back"),
    Break("a_stranger_is_put_where_another_users_parent_is", "src/fence/attach.rs", "Ok(place) if is_its =>", "Ok(place) if is_its | true =>",
          "host life who_gets_the_number_of_a_process_that_is_put_in_is_put_back"),
    Break("a_real_time_process_is_not_thought_of", "src/cgroup/handing_down.rs", 'if controller == "cpu" {', "if false {",
          "unit handing_down"),
    Break("an_order_of_three_brackets", "src/hostlist.rs", "brackets(name) <= 2", "brackets(name) <= 4",
          "host facts lists_of_nodes_are_what_slurm_takes_them_for"),
    # What slurmctld has not checked.
    Break("an_account_that_nobody_checks", "src/schedulers/slurm/prolog.rs", "account.if_checked(checked.account)", "account",
          "unit slurm::prolog"),
    Break("a_qos_that_nobody_checks", "src/schedulers/slurm/prolog.rs", '.if_checked(checked.qos)', "", "unit slurm::prolog"),
    Break("checks_without_a_database", SLURM_CONF, 'if value("AccountingStorageType") != "accounting_storage/slurmdbd" {', "if false {",
          "unit slurm::conf"),
    Break("a_claim_that_is_noted_down_as_known", JOB, '(_, Some(name)) => writeln!(f, "{key}=~{name}")?,',
          '(_, Some(name)) => writeln!(f, "{key}=={name}")?,', "unit record::job"),
    Break("a_wish_that_is_undefined", "src/schedulers/htcondor/asked.rs", 'filter(|value| !value.eq_ignore_ascii_case("undefined"))', "filter(|_| true)",
          "unit htcondor::asked"),
    Break("the_sites_own_variables_are_lost", "src/schedulers/htcondor/environment.rs", 'format!("\\"{inside} {}\\"", ours.join(" "))',
          'format!("\\"{}\\"", ours.join(" "))', "unit htcondor::environment"),
    Break("a_wish_that_nobody_hears", STARTER, "UserRequests { job: Requests::default(), step: self.asked }", "UserRequests::default()",
          "unit a_user_lowers_limits_and_a_schedd_of_this_host_says_why"),
    Break("a_schedd_elsewhere_is_asked", STARTER, ".filter(|_| submitter.is_this_host == Some(true));", ";",
          "unit a_user_lowers_limits_and_a_schedd_of_this_host_says_why"),
    Break("a_card_of_the_starter", "src/schedulers/htcondor/command/job.rs", "names.get(..at + 3)?", "names.get(..at + 2)?",
          "unit a_job_is_where_htcondor_puts_it_into_the_fence"),
    Break("a_restart_that_ends_jobs_is_not_said", "src/schedulers/gridengine/command/check.rs", '["process", "none"].contains(&mode)', '!mode.is_empty()',
          "unit a_unit_that_ends_jobs_with_execd"),
    Break("a_forged_owner", JOB_AD, ".count() > 1", ".count() > 2", "unit htcondor::job_ad"),
    Break("a_stranger_of_the_local_name", SETTINGS, "domain.eq_ignore_ascii_case(&self.uid_domain).then_some(true)", "Some(true)", "unit htcondor::settings"),
    Break("a_host_that_is_believed", SETTINGS, "Some(is_in_domain(submitter.host, &self.uid_domain)),", "Some(true),", "unit htcondor::settings"),
    Break(
        "the_unknown_are_nobody", STARTER, "uid.unwrap_or(UNKNOWN_USERS | std::process::id())", "uid.unwrap_or(65_534)",
        "unit a_job_whose_user_is_not_said",
    ),
    Break("a_group_with_a_users_name", SLOT_AD, "Some((group, name)) if !name.contains('.') => claimed(group),", "Some(_) if !whole.contains(\"..\") => claimed(whole),", "unit htcondor::slot_ad"),
    Break("a_job_that_has_the_starters_room", "src/doors/life.rs", "fence.limit_branches(&room.branches, &of_job)", "fence.limit_branches(&[], &of_job)", "host life a_job_has_no_part_of_the_room"),
    Break("a_fault_that_is_not_said", "src/schedulers/htcondor/command/monitor.rs", "Err(errors) => return Some(Err(errors.to_string())),", "Err(_) => return Some(Ok(())),", "unit a_host_with_a_mistake"),
    Break("an_owner_whom_the_user_names", JOB_AD, "_ if release()? >= HAS_OS_USER => os_user,", "_ => os_user,", "unit htcondor::job_ad"),
    Break("a_line_within_a_startds_text", SLOT_AD, r"ad.0.iter().find(|(_, value)| value.contains('\n'))", "ad.0.iter().find(|_| false)",
          "unit htcondor::query"),
    Break("settings_of_a_file_that_has_changed", "src/schedulers/htcondor/command/starter/kept.rs", "stamps().all(is_same)", "true || stamps().all(is_same)",
          "unit what_was_kept_counts"),
    Break("a_port_at_which_nobody_listens", "src/schedulers/htcondor/command/starter/startd.rs", "!listeners.is_empty() && ", "", "unit who_listens_at_a_port"),
    Break("an_address_that_leads_elsewhere", "src/schedulers/htcondor/command/starter/reason.rs", "is_daemons(address, owner)).map", "is_daemons(address, owner) || true).map",
          "unit root_talks_to_no_users_program"),
    Break("a_schedd_whom_the_user_names", STARTER, ".filter(|name| !name.starts_with('<'))", "", "unit a_user_lowers_limits_and_a_schedd"),
    Break("a_line_with_another_delimiter", "src/schedulers/htcondor/environment.rs", "site.starts_with(|first| DELIMITERS.contains(first))", "false",
          "unit htcondor::environment"),
    Break("a_variable_that_is_not_for_a_program", "src/sys/program.rs", "!names.iter().any(|left| name == left)", "names.is_empty() || true", "unit it_has_the_environment"),
    Break("a_signal_for_real_time_that_nobody_passes_on", "src/doors/run.rs", "with_numbers(watched, libc::SIGRTMIN()..=libc::SIGRTMAX());", "with_numbers(watched, []);",
          "host cli a_signal_for_real_time"),
    Break("settings_that_hang_on_more", "src/schedulers/htcondor/command/starter/kept.rs", "if hangs_on_more(Path::new(path)) {", "if false {",
          "unit what_was_kept_counts"),
    Break("a_branch_that_the_watcher_does_not_know", "src/schedulers/htcondor/command/starter/watch.rs", "c_string(run)?, c_string(branch)?]",
          "c_string(run)?, c_string(&branch[..0])?]", "unit what_the_watcher_is_told"),
    Break("an_answer_about_the_job_after", "src/schedulers/htcondor/command/starter/late.rs", "found.filter(|_| starter.exists())", "found.filter(|_| true)",
          "unit a_startd_that_is_busy"),
    Break("a_startd_that_is_asked_once", "src/schedulers/htcondor/command/starter/late.rs", "for pause in pauses {", "for pause in &pauses[..1] {",
          "unit a_startd_that_is_busy"),
    Break("a_starter_without_room_of_its_own", STARTER, "room: Some(Room {", "room: (limits_memory).then_some(Room {", "unit the_starter_has_room"),
    # A check for programs and for health checks.
    Break("a_check_of_another_pid_namespace_is_dead", "src/schedulers/slurm/command/dirs.rs",
          "rest.strip_suffix(&of_namespace(host))", "rest.split('.').next()", "host cli check_leaves_nothing_behind"),
    Break("a_health_check_fails_where_jobs_are_only_observed", "src/command/check/verdict.rs",
          "VerdictWord::Observe => (VerdictWord::Unobserved, why)", "VerdictWord::Observe => (VerdictWord::Unfenced, why)",
          "host cli a_health_check_asks_the_daemons"),
    Break("a_health_check_fails_for_what_is_unknown", "src/command/check/health.rs", "judged.short().0 == VerdictWord::Unfenced",
          "!judged.short().0.is_good()", "host cli a_health_check_asks a_health_check_fails_only"),
    Break("what_stands_below_a_row_is_for_people_alone", "src/command/check/rows.rs",
          "self.rows.push(CheckRow { name, value, kind: RowKind::Remark, is_more: true });", "let _ = (name, value);", "host cli check_says_the_same"),
    Break("a_line_with_quotes", "src/command/check/document.rs", "let plain = |c: &char| !matches!(c, '\\'' |", "let plain = |c: &char| !matches!(c, '\\t' |",
          "unit check::document"),
    Break("a_shells_htcondor", "src/command/check/daemon.rs", "{ self.kind.variables } else { &[] }", "{ self.kind.variables } else { self.kind.variables }",
          "unit what_the_shell_has"),
    Break("a_default_for_a_job_that_was_granted_more", POLICY, "(None, default_memory) } else", "(default_memory, None) } else", "unit policy::"),
    # Slurm's files as Slurm reads them.
    Break("a_comment_goes_on", SLURM_CONF, "piece = without_comment(piece);", "", "unit slurm::conf"),
    Break("blanks_behind_a_backslash", SLURM_CONF, "let end = piece.trim_end_matches(is_blank);", "let end = piece.trim_end_matches('\\n');",
          "unit slurm::conf"),
    Break("files_beside_the_one_that_includes", SLURM_CONF, "let (first, by) = (self.open.first()?", "let (first, by) = (self.open.last()?",
          "unit slurm::conf"),
    Break("a_host_is_a_node_of_its_name", SLURM_CONF, 'let hosts = value(line, "NodeHostname").unwrap_or(names);', "let hosts = names;",
          "unit slurm::conf"),
    Break("aliases_are_nobodys", "src/schedulers/slurm/command/node.rs", "conf::this_node(&Lines::read(file), aliases)",
          "conf::this_node(&Lines::read(file), |_| Vec::new())", "slurm a_node_is_found_as_slurmd_finds_it"),
    Break("a_node_is_read_behind_other_plugins", "src/schedulers/slurm/spank.rs", "step::read(&unsafe { api::arguments(ac, av) });",
          "let _ = (ac, av);", "slurm another_plugin_changes_the_root"),
    Break("run_dir_of_another_root", "src/schedulers/slurm/spank/node_files.rs", "if !is_there {", "if false {",
          "slurm another_plugin_changes_the_root"),
    Break("only_one_of_controllers_mounted_together", "src/schedulers/slurm/plugins.rs", '(has("memory") || has("cpuacct"))', 'has("memory")',
          "unit slurm::plugins"),
    # What the kernel says.
    Break("a_binding_is_the_whole_machine", "src/cgroup/events.rs", '"CONSTRAINT_CPUSET" =>', '"CONSTRAINT_CPUSETS" =>', "unit cgroup::events"),
    Break("a_cache_of_zfs_is_used", "src/command/host/memory.rs", ".saturating_sub(arc(proc))", "", "unit host::memory"),
    Break("a_controller_that_is_off_is_mounted", "src/host.rs", 'words.nth(2) == Some("0")', 'words.nth(2) == Some("9")', "unit host::"),
    # What the schedulers see of an end, and of each other.
    Break(
        "a_shepherd_outlives_its_job", "src/janitor.rs",
        "|one, other| other.cmp(one)", "Ord::cmp",
        "host left_behind the_steps_of_a_job_go_backwards",
    ),
    Break(
        "a_containers_daemon_is_this_hosts", "src/sys/process.rs",
        "pids.split_whitespace().count() > 1)", "pids.split_whitespace().count() > 9)",
        "unit a_process_with_a_number_of_its_own",
    ),
    # A guess, and a name that nobody has.
    Break(
        "a_guess_bounds_the_job", "src/schedulers/slurm/spank/grant.rs",
        "slurms.max(kernels)", "slurms.min(kernels)",
        "nodes two_threads_per_core",
    ),
    Break("a_group_of_nobody_is_unknown", "src/sys/group.rs", ".then_some(false)", ".then_some(true)", "unit sys::group"),
    Break(
        "a_section_of_nobody_is_passed_over", "src/command/check/names.rs",
        "!known.contains(name)", "known.contains(name)",
        "host cli check_names_what_sections_name",
    ),
    # What others have named.
    Break(
        "any_path_is_a_fence", HOOK,
        'return any(line.split(":", 2)[2].startswith(begins) for line in file)',
        'return any("/uid_%d/job_" % uid in line for line in file)',
        "hook a_name_is_no_fence",
    ),
    Break(
        "a_name_is_a_step_daemon", "src/schedulers/slurm/daemons.rs",
        "&& process::program(proc, pid).is_none_or(|program| program.starts_with(NAME))",
        "",
        "unit a_name_alone_is_no_step_daemon",
    ),
    Break(
        "root_follows_links_of_users", "src/command/whole.rs",
        "if geteuid().is_root() && stat.st_uid != 0 {",
        "if geteuid().is_root() && stat.st_uid == u32::MAX {",
        "unit root_follows_no_link_of_a_user",
    ),
    Break(
        "another_thread_gives_roots_rights_back", "src/sys/as_user.rs",
        "set_mask(libc::SIG_BLOCK, 1 << (SETXID - 1))",
        "set_mask(libc::SIG_BLOCK, 0)",
        "unit another_thread_that_changes_its_user_waits",
    ),
    Break(
        "json_turns_text_round", "src/report/json.rs",
        "c if !is_printable(c) => {",
        "c if (c as u32) < 32 || (127..160).contains(&(c as u32)) => {",
        "unit a_text_is_one_of_json",
    ),
    Break(
        "users_cannot_read_the_plugin", "src/schedulers/slurm/command/arguments.rs",
        "let (what, remedy) = closed(&loaded)?;",
        "let (what, remedy) = closed(&loaded).filter(|_| false)?;",
        "host cli check_loads_the_plugin_as_slurm_does",
    ),
    Break(
        "another_line_is_not_spoken_of", "src/schedulers/slurm/plugstack.rs",
        "Some(first) => first.again.push(line.place()),",
        "Some(_) => {}",
        "unit the_first_of_several_lines_counts",
    ),
    Break(
        "a_service_of_others_is_stopped", "src/schedulers/slurm/command/disable.rs",
        "    if keep_service {\n", "    if keep_service && !host.systemd && loaded_from.len() > 9 {\n",
        "host enable what_is_left_does_not_keep_the_line",
    ),
    Break(
        "what_is_left_is_a_failure", "src/schedulers/slurm/command/disable.rs",
        "options.keep_service).or_else(|error| {\n", "options.keep_service).or_else(|error| {\n        if !error.to_string().is_empty() {\n            return Err(error);\n        }\n",
        "host enable what_is_left_does_not_keep_the_line",
    ),
    Break(
        "disable_leaves_the_samples", "src/schedulers/slurm/command/disable.rs",
        "series::remove_all(&config.run_dir).map_err(|error| error.to_string())",
        "Ok(())",
        "host enable one_command_turns_it_on_and_one_off",
    ),
    # Figures that mislead.
    Break(
        "a_quota_below_the_grant_is_not_seen", "src/report/card/figures.rs",
        "self.cpus.map(|cpus| cpus.min(self.cpus_limit.unwrap_or(cpus)))", "self.cpus",
        "unit a_quota_below_the_grant_is_what_a_job_could_use",
    ),
    Break(
        "a_serial_program_is_advised_two", ADVICE,
        "u128::from(busy.saturating_sub(NO_OTHER))", "u128::from(busy + busy / 4)",
        "unit a_program_that_is_busy_on_whole_cpus",
    ),
    Break("a_summary_takes_the_runs_of_a_number_for_one", "src/command/report/summary/runs.rs",
          "let is_anothers = part.has(step) || part.is_over && began > part.ended;", "let is_anothers = false;",
          "unit a_job_on_several_nodes_is_one"),
    Break("one_job_makes_up_for_the_waste_of_another", "src/command/report/summary/tally.rs",
          "(reserved - used).max(0.0))", "reserved - used)",
          "unit hours_are_those_of_all_nodes"),
    Break("one_in_a_hundred_may_break_by_advice", "src/command/report/summary/habits.rs",
          "const MAY_BREAK: u64 = 1000;", "const MAY_BREAK: u64 = 100;",
          "unit advice_that_would_have_broken_later_runs"),
    Break("a_summary_shows_users_the_jobs_of_others", "src/command/report/summary.rs",
          "if uid.is_some() && line.uid != uid {", "if uid.is_some() && line.uid.is_none() {",
          "host summary users_see_their_own"),
    Break("a_job_that_lost_its_program_completed", "src/report/card/title.rs", "match (self.killed(), self.exit) {", "match (None::<u64>, self.exit) {",
          "unit a_job_that_was_killed_for_want"),
    Break(
        "wall_time_in_whole_seconds", "src/command/report/runs.rs",
        ".checked_sub(began.into_iter().min()?);",
        ".checked_sub(began.into_iter().min()?).map(|wall| Duration::from_secs(wall.as_secs()));",
        "unit a_quota_below_the_grant_and_times",
    ),
    Break("bytes_have_another_name_in_the_log", "src/figures.rs", '(suffix Bytes) => { "_bytes" };', '(suffix Bytes) => { "_octets" };',
          "unit a_line_is_read_as_it_was_written"),
    Break("peaks_are_added", "src/figures.rs", "memory_peak: Bytes, Most, Card", "memory_peak: Bytes, Sum, Card",
          "unit a_second_directory_adds_to_the_first"),
    Break(
        "metrics_have_room_for_daemons", "src/command/metrics.rs",
        "limit.min(cpus_limit.unwrap_or(limit))", "limit",
        "unit limits_are_without_room_for_daemons",
    ),
    Break("what_was_granted_is_nowhere", "src/launch/begin.rs", "noted.filter(|_| config.metrics_file.is_some())",
          "noted.filter(|_| config.metrics_file.is_none())", "slurm figures_for_prometheus"),
    Break("hold_is_heard_as_the_scope", "src/command/journal.rs", "\\nOBJECT_SYSTEMD_UNIT={UNIT}\\n", "\\nUNIT={UNIT}\\n",
          "unit a_message_is_one_field"),
    Break("a_jobs_huge_pages_free_memory", "src/command/host/memory.rs", "used.saturating_add(huge)", "used",
          "unit the_pool_of_huge_pages"),
    # What people call a job, and what is said of one.
    Break("a_task_has_the_number_of_its_array", "src/schedulers/slurm/command/job.rs", "if job.nodes.is_empty() => Err(", "if job.number == 0 => Err(",
          "slurm called_as_in_squeue"),
    Break("an_array_is_its_first_job", "src/command/job_name.rs", "([(id, _)], _) => Ok", "([(id, _)], _) | ([], [(id, _), ..]) => Ok",
          "unit of_several_one_has_to_be_said"),
    Break("squeue_outranks_the_record", "src/command/explain/asking.rs", "None if !present.steps.is_empty() => {", "None if false => {",
          "slurm explained_as_its_steps_know_it"),
    Break("what_a_user_writes_is_known", "src/command/check/claims.rs", "if kinds.contains(&kind) =>", "if kinds.is_empty() =>",
          "unit what_a_user_writes_is_claimed"),
    Break("no_project_is_no_answer", "src/schedulers/gridengine/command/mod.rs", 'why.contains(": no ")', 'why.contains(": no one")',
          "unit qconf_fails_where_there_is_none"),
    Break("a_qos_is_that_of_the_whole_array", "docs/man/jobfence.8", "s/\\(ha$SLURM_JOB_ID //p", "s/\\(ha[0-9]* //p",
          "slurm prologs_of_the_manual"),
    # A session that begins within a job.
    Break(
        "session_forgets_where_it_began", TAKE_BACK,
        "match began.filter(|began| places.holds(began)) {",
        "match began.filter(|_| false) {",
        "host adopt a_session_from_within_a_job_is_put_back_into_it",
    ),
    Break(
        "session_without_a_parent_in_the_job", TAKE_BACK,
        "None => places.of_an_ancestor(process.this)?,",
        "None => None,",
        "host adopt a_session_from_within_a_job_is_put_back_into_it",
    ),
    Break(
        "fetched_back_from_anywhere", TAKE_BACK,
        "if !places.is_a_login(&now) || places.holds(&now) {",
        "if places.holds(&now) {",
        "host adopt what_a_job_has_started_in_user_slice_is_fetched_back",
    ),
    Break(
        "root_denied_by_a_mistake", ADOPT,
        "if request.pam.as_ref().is_some_and(|pam| pam.becomes() == Ok(None)) {",
        "if false {",
        "host adopt a_session_that_comes_from_no_job_is_where_pam_puts_it",
    ),
    Break(
        "one_line_for_su_is_enough", "src/schedulers/slurm/command/pam.rs",
        "(!both || before.iter().any(Call::is_ours))",
        "true",
        "unit says_by_which_services_jobs_are_left",
    ),
    Break(
        "a_lock_keeps_run_dir", "src/record/removal.rs",
        "[LIMITS, GPUS, CORES, CARDS, PRIVATE, \"whole\"]",
        "[LIMITS, GPUS, CORES, PRIVATE, \"whole\"]",
        "unit locks_are_removed_with_the_directory",
    ),
    Break(
        "a_name_makes_a_daemon", "src/command/check/daemon.rs",
        "process::program(proc, pid).is_some_and(|program| program.starts_with(name))",
        "process::program(proc, pid).is_some()",
        "unit a_name_alone_is_no_daemon",
    ),
    Break(
        "each_vnode_is_waited_for", HOOK, "left = deadline - time.monotonic()\n            ask", "left = SERVER_PATIENCE\n            ask",
        "hook a_host_that_can_fence_no_job",
    ),
    # A page that does not say what the code says.
    Break(
        "an_option_of_another_text", "src/command/host.rs",
        "/// A plain number is MiB. A percentage is a whole number.", "/// A plain number is KiB. A percentage is a whole number.",
        "unit the_manual_has_the_commands_and_options",
    ),
    Break(
        "a_message_is_left_out", "docs/troubleshooting.md",
        "- `no job on this node can be fenced: ...`: ", "- ",
        "host messages every_message_for_an_administrator",
    ),
    # Which file counts.
    Break(
        "own_file_before_slurms", "src/config/load.rs",
        '["/etc/slurm/jobfence.conf", OWN_FILE]', '[OWN_FILE, "/etc/slurm/jobfence.conf"]',
        "host cli the_check_names_the_file_that_counts_and_those_that_do_not",
    ),
    Break(
        "unreadable_file_is_passed_over", "src/config/load.rs",
        "file::read(path, may_be_missing)?", "file::read(path, may_be_missing).unwrap_or(None)",
        "unit the_first_default_file_that_exists_counts",
    ),
    Break(
        "one_file_by_two_names_is_shadowed", "src/command/check.rs",
        "(real(other).is_none() || real(other) != real(read))", "true",
        "host cli the_check_names_the_file_that_counts_and_those_that_do_not",
    ),
    Break(
        "hook_names_a_file", HOOK,
        'settings["Config"].encode() or None', '(settings["Config"] or "/etc/slurm/jobfence.conf").encode()',
        "hook where_the_configuration_is",
    ),
    Break(
        "slurms_directory_is_ours", SLURM_CONF,
        'directory.ends_with("jobfence") && slurms.is_dir()', "false",
        "unit slurms_directory_is_beside_ours",
    ),
    # What --version says.
    Break("commit_as_long_as_git_says_it", "src/version/build.rs", "commit.chars().take(SHORT).collect()", "commit.to_owned()",
          "host version the_commit_is_known_with_git_and_without"),
    Break("a_schema_that_version_does_not_say", "src/command/version.rs", "        living::SCHEMA,\n", "",
          "host version each_number_is_said"),
    Break(
        "a_step_is_done_before_its_entry_is_on_disk", SETUP_JOURNAL,
        "        self.save()?;\n        Ok(number)",
        "        Ok(number)",
        "host setup dies::it_may_die_at_each_change",
    ),
    Break(
        "setup_overwrites_what_somebody_has_changed", SETUP_JOURNAL,
        'if now == before || now == self.text(entry, "after").map_err(failed)? || is_ours(path) {',
        'if true {',
        "host setup what_somebody_has_changed_since_stays",
    ),
    Break(
        "setup_undo_disables_the_service_beside_a_hook", "src/command/setup/undo.rs",
        "left.or_else(|| others.iter().find(starts)",
        "left.or_else(|| others.iter().filter(|_| false).find(starts)",
        "unit the_service_stays_while_any_scheduler_starts_jobs",
    ),
    Break(
        "setup_leaves_the_steps_before_the_one_that_failed", "src/command/setup/apply.rs",
        ".filter(|entry| entry.number > before)",
        ".filter(|entry| entry.number < before)",
        "unit a_step_that_fails_takes_the_others_back",
    ),
    Break(
        "setup_reaches_other_nodes_unasked", "src/command/setup/apply.rs",
        "!seen.is_done && (central || !seen.step.is_central)",
        "!seen.is_done",
        "unit what_reaches_further_is_done_only_when_it_was_asked_for",
    ),
    Break(
        "a_file_of_the_administrators_becomes_roots", "src/command/whole.rs",
        "fchown(&file, Some(to.uid), Some(to.gid))",
        "fchown(&file, None, None).map(|()| drop(to))",
        "host setup one_command_sets_it_up_and_takes_it_back",
    ),
    Break(
        "setup_checks_no_node_that_is_set_up", "src/command/setup.rs",
        "if one.is_bystander {",
        "if one.is_bystander || !is_changed {",
        "slurm set_up_and_taken_back",
    ),
    Break(
        "an_include_of_one_directory_includes_all", "src/schedulers/slurm/plugstack.rs",
        "libc::FNM_PATHNAME | libc::FNM_PERIOD",
        "libc::FNM_PERIOD",
        "unit a_file_that_does_not_exist_yet_would_be_read",
    ),
    Break(
        "a_program_with_roots_rights_is_a_stray", "src/command/strays/search.rs",
        "if status.uids.iter().any(|uid| self.accounts.is_systems(*uid)) {",
        "if false {",
        "host strays hostile_strays_are_killed_and_all_others_are_spared",
    ),
    Break(
        "a_containers_process_is_a_stray", "src/command/strays/search.rs",
        "NamespaceMaker::Host => Ok((uid, account)),",
        "NamespaceMaker::Host | NamespaceMaker::Another => Ok((uid, account)),",
        "host strays hostile_strays_are_killed_and_all_others_are_spared",
    ),
    Break(
        "strays_end_where_no_scheduler_is", "src/command/strays/search.rs",
        "if !self.lineage.has_nodes_daemon() {",
        "if false {",
        "host strays strays_are_only_reported_where_they_may_be_something_else",
    ),
    Break(
        "what_a_daemon_has_started_is_a_stray", "src/command/strays/search.rs",
        "if self.lineage.is_of_a_daemon(id) {",
        "if false {",
        "host strays hostile_strays_are_killed_and_all_others_are_spared",
    ),
)
