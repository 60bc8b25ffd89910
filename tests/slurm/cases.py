#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""jobfence seen from outside, by real jobs in a real Slurm.

    python3 cases.py --site private --so PATH [--bin PATH] [--only NAME…]
    python3 cases.py --site two-nodes --so PATH [--bin PATH] [--settings DIRECTORY]
    python3 cases.py --site installed
    python3 cases.py [--site SITE] --list

Each case submits jobs as ordinary users and compares what it finds in the kernel's files
with what was granted. After each, nothing of it may be left and the node must be idle.
"""

import argparse
import contextlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from contract import kernel, sites  # noqa: E402, F401
from slurm import suite  # noqa: E402, F401
from contract.harness import CASES  # noqa: E402
from contract.runner import Runner, part_of  # noqa: E402
from contract.sites import SiteError, die_properly, until  # noqa: E402
from slurm.sites import InstalledSite, PrivateSite, TwoNodesSite  # noqa: E402


class SlurmRunner(Runner):
    def left(self, site):
        return {*site.leftovers(), *site.slurms_leftovers()}

    def before(self, site, function):
        site.configure()

    def after(self, site, known):
        """What must hold after every case; `known` is what an earlier one has left."""
        site.configure()
        if site.submitted and not site.idle_again():
            site.scancel(*(jobid for _, jobid in site.submitted))
        until(site.idle_again, 60, "the end of every job")
        left = self.left(site)
        if site.jobfence and any("/tracked/" in one for one in left):
            # Left to 'jobfence hold', whose next round may be a minute away.
            site.command(str(site.jobfence), "reap", "--config", str(site.config))
        try:
            if not left <= known:
                until(lambda: self.left(site) <= known, 5, "a clean tree")
        except AssertionError:
            left = sorted(self.left(site) - known)
            known.update(left)
            if left:
                raise AssertionError("left behind: " + ", ".join(left)) from None
        try:
            until(lambda: site.node_state() == "IDLE", 10, "idle")
        except AssertionError:
            state = site.node_state()
            site.resume()
            raise AssertionError(f"the node is {state}") from None

    def details(self, site, mark):
        for user, jobid in site.submitted:
            job = site.job(jobid)
            yield f"job {jobid} of {user}: {job.get('JobState')} {job.get('ExitCode')}"
            yield from ("  | " + line for line in site.output(jobid).splitlines()[:30])
        yield "slurmd's log:"
        yield from ("  | " + line for line in site.log_since(mark).splitlines()[-40:])


SITES = {
    "private": lambda options: PrivateSite(options.so, options.bin, options.users, options.settings),
    "two-nodes": lambda options: TwoNodesSite(options.so, options.bin, options.users, options.settings),
    "installed": lambda options: InstalledSite(),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--site", choices=tuple(SITES), default="private")
    parser.add_argument("--so", help="the plugin (private sites); without it nothing is fenced")
    parser.add_argument("--bin", help="the jobfence command (private sites beside systemd)")
    parser.add_argument("--settings", metavar="DIRECTORY",
                        help="with slurm.conf and cgroup.conf: lines for those of a private site")
    parser.add_argument("--users", nargs=2, metavar="USER",
                        help="of a private site, and no other's beside it; without this, two with nothing to do")
    parser.add_argument("--patience", type=float, metavar="FACTOR",
                        help="multiplies every time limit: 1, or 3 for an installed site")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[])
    parser.add_argument("--layout", action="store_true",
                        help="only the cases in which the cgroup layout makes a difference")
    parser.add_argument("--patient", action=argparse.BooleanOptionalAction,
                        help="only the cases that wait for Slurm for more than a minute, or only the others")
    parser.add_argument("--release", action=argparse.BooleanOptionalAction,
                        help="only the cases that 'make check' leaves out, or only the others")
    parser.add_argument("--slice", type=part_of, default=(1, 1), metavar="K/N", help="of all that is chosen otherwise, only the K-th of N parts")
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


def entered(options, stack):
    """The site. It is begun once more if Slurm itself did not start: in a guest, systemd can be too slow for slurmd's scope."""
    try:
        return stack.enter_context(SITES[options.site](options))
    except SiteError as error:
        print(f"once more, since Slurm did not start: {error}", flush=True)
        return stack.enter_context(SITES[options.site](options))


def main():
    options = arguments()
    fitting = [function for function in CASES if options.site in function.sites]
    unknown = set(options.only) - {function.__name__ for function in fitting}
    if unknown:
        sys.exit(f"no such case for the {options.site} site: {', '.join(sorted(unknown))}")
    chosen = [f for f in fitting if not options.only or f.__name__ in options.only]
    chosen = [f for f in chosen if f.layout or not options.layout]
    chosen = [f for f in chosen if options.patient in (None, f.patient)]
    chosen = [f for f in chosen if options.release in (None, f.release)]
    part, parts = options.slice
    chosen = chosen[part - 1::parts]
    if options.list:
        print("\n".join(function.__name__ for function in chosen))
        return 0
    die_properly()
    sites.PATIENCE = options.patience or (3 if options.site == "installed" else 1)
    with contextlib.ExitStack() as stack:
        site = entered(options, stack)
        kernel.slurm_limits_memory = site.slurm_limits_memory()
        kernel.slurm_tracks = site.slurm_tracks()
        counts = SlurmRunner().run(site, chosen)
    print(f"{counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
