#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Which cases 'make check' runs in which cell: cell.py CELL --chosen. As a program: whether each is a case of its site.

A private Slurm on this machine runs all cases of 'make check', with Slurm 22.05, directories of ours, and whatever cgroup layout the
machine has. A case is here only if something else decides its result: the files of cgroup v2, systemd, directories of Slurm's,
another release of Slurm, or that jobfence is installed. It runs in the one cell that shows it best. Some few, which show
what a placement is, run in several. 'make check-all' runs every case in every cell. A private HTCondor is the same to HTCondor's cell.
"""

import subprocess
import sys
from pathlib import Path

from cells import BY_THEMSELVES, CHECKED

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

V2_OWN, NEWER_V2_OWN = "debian12-v2-own", "debian13-v2-own"
V2_OVERLAY, V1_OVERLAY = "forky-v2-overlay", "debian12-hybrid-overlay"

CHOSEN = {
    # The files of cgroup v2 where the directories are ours, by the oldest kernel. Quotas of projects, which a guest's kernel certainly has.
    (V2_OWN, "installed"): """
        as_granted out_of_memory fork_bomb swap_limit io_limits slowed_then_killed divided_by_its_user divided_without_end
        a_word_before_memory_ends outgrows_its_memory resized resized_memory_in_use
        devices_denied_and_allowed devices_beside_a_program_that_admits_none
        private_space_on_disk private_space_of_a_dead_daemon private_space_that_nothing_holds
    """,
    # Of the hook of OpenPBS, what ends and stops jobs, and all files that it writes.
    (V2_OWN, "hook"): """
        life over_its_memory memory_and_swap suspended mom_dies
    """,
    # What systemd does to ours, what newer releases of Slurm have, and what an administrator is told of an installation.
    (NEWER_V2_OWN, "installed"): """
        as_granted high_stays_in_place oom_kills_step protection_is_checked memory_of_user cores_of_two_jobs limits_cannot_be_raised
        huge_pages_of_a_job huge_pages_are_not_handed_down_by_systemd
        daemon_reload daemon_reexec service_restart scope_is_stopped controller_not_handed_down held_by_a_unit moves_are_early
        hold_is_heard_where_one_looks killed_by_oomd two_jobs_of_one_account no_input_leads_to_the_host
        check_says_placement check_without_root a_name_without_a_file slurms_directory_first cores_that_are_uncertain_are_refused
        prolog_in_the_job
    """,
    # The newest Slurm in its own directories of cgroup v2.
    (V2_OVERLAY, "installed"): """
        as_granted out_of_memory io_limits memory_of_task memory_changes
        metrics_say_what_was_granted huge_pages_and_the_memory_limit
        nothing_of_ours_in_slurms daemon_lives_in_the_job headroom_changes
        check_says_placement needs_no_scope controller_not_handed_to_slurm dollars_are_not_expanded network_bound_is_refused
        task_is_elsewhere slurms_directories extern_daemon_is_killed
        plugins_in_the_container mpi
        slurms_files_are_read_as_slurm_reads_them a_node_is_found_as_slurmd_finds_it
    """,
    # Slurm's directories on cgroup v1, and those that track the processes, which are ours: two placements in one job.
    (V1_OVERLAY, "installed"): """
        as_granted out_of_memory io_limits memory_of_task swap_is_slurms_affair devices_denied_and_allowed
        nothing_of_ours_in_slurms task_is_elsewhere check_says_placement service_restart
        slurms_directories next_launch_removes straggler_double_fork frozen_step_is_cancelled
    """,
    # Slurm 26.05 names jobs otherwise. What is the same on two nodes of any Slurm, the private one has.
    (V2_OVERLAY, "two-nodes"): """
        one_node_fails word_on_every_node first_step_elsewhere tasks_share_their_step
    """,
}
CHOSEN = {which: names.split() for which, names in CHOSEN.items()}
# HTCondor's own limits and accounts of cgroup v2, Docker, units of systemd, and what shows that a fence on cgroup v2 holds and ends.
OF_HTCONDOR = """
    as_granted escapee deleted watcher_is_killed variables used
    out_of_memory out_of_the_fences_memory memory_as_the_site_says local_out_of_memory why_it_is_held
    card stays_in container gpus service_comes_first
""".split()
# They take a guest's processor for most of a minute. The host's tests open PAM sessions, and bound networks, too, and the pictures show what
# others look at.
LEFT_TO_CHECK_ALL = {"logins_by_pam_slurm_adopt", "network_bounded", "pictures"}


def mistakes(cases, hooks):
    """What is wrong with the table, given the cases of Slurm and those of the hook."""
    sites = {case.__name__: case.sites for case in cases} | {case.__name__: ("hook",) for case in hooks}
    for (cell, site), names in CHOSEN.items():
        for name in names:
            if name not in sites:
                yield f"{cell}: {name} is no case"
            elif site not in sites[name]:
                yield f"{cell}: {name} is no case of the site {site}"
            elif names.count(name) > 1:
                yield f"{cell}: {name} is there twice"
    runs = [*CHECKED, *((cell, options) for cell, _, options in BY_THEMSELVES)]
    run = [(cell, option.removeprefix("--")) for cell, options in runs if "--chosen" in options for option in options]
    yield from (f"{cell} has cases of the site {site}, and no check runs them" for cell, site in CHOSEN if (cell, site) not in run)
    here = LEFT_TO_CHECK_ALL.union(*CHOSEN.values())
    yield from (f"{name} is nowhere, and runs only where Slurm is installed" for name, on in sites.items()
                if set(on) == {"installed"} and name not in here)


def listed_of_htcondor(*options):
    program = Path(__file__).resolve().parents[1] / "htcondor/cases.py"
    command = sys.executable, "-B", program, "--list", "--no-release", *options
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def mistakes_of_htcondor():
    """Its cases can have the names of Slurm's, so a program of their own lists them."""
    every, private = listed_of_htcondor(), listed_of_htcondor("--site", "private")
    yield from (f"{name} is no case of HTCondor in 'make check'" for name in OF_HTCONDOR if name not in every)
    yield from (f"{name} of HTCondor is there twice" for name in set(OF_HTCONDOR) if OF_HTCONDOR.count(name) > 1)
    yield from (f"{name} of HTCondor is nowhere in 'make check'" for name in sorted(every - private - set(OF_HTCONDOR)))


def main():
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from pbs import replay
    from slurm import suite  # noqa: F401
    from contract.harness import CASES
    found = [*mistakes(CASES, replay.CASES), *mistakes_of_htcondor()]
    print(*(f"FAIL chosen: {line}" for line in found), sep="\n", end="\n" * bool(found))
    print(f"{int(not found)} passed, {int(bool(found))} failed, 0 skipped")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
