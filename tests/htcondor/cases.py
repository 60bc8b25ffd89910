#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""jobfence seen from outside, by real jobs in a real HTCondor.

    python3 cases.py [NAME…]      in a virtual machine, where `start` has run
    python3 cases.py --list

Each case submits jobs as ordinary users and compares what it finds in the kernel's files with what the startd says it has
granted. After each, nothing of it may be left, and the pool must answer.
"""

import argparse
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from contract import sites as shared  # noqa: E402
from contract.harness import CASES  # noqa: E402
from contract.runner import Runner, part_of  # noqa: E402
from contract.sites import die_properly, until  # noqa: E402

from htcondor import sites, suite  # noqa: E402, F401
from htcondor.harness import is_restarting  # noqa: E402


class HTCondorRunner(Runner):
    def before(self, site, function):
        if not is_restarting(function):
            site.restored()
        site.configure()

    def after(self, site, known):
        """What must hold after every case; `known` is what an earlier one has left."""
        site.configure()
        if here := [jobid for _, jobid in site.submitted if site.queued(jobid) and jobid not in site.removed]:
            site.remove(*here)
        until(site.idle_again, 180, "the end of every job")
        try:
            until(lambda: self.left(site) <= known, 60, "a clean tree")
        except AssertionError:
            left = sorted(self.left(site) - known)
            known.update(left)
            if left:
                raise AssertionError("left behind: " + ", ".join(left)) from None
        until(site.is_answering, 120, "the pool")

    def details(self, site, mark):
        for user, jobid in site.submitted:
            yield f"job {jobid} of {user}: {site.queued(jobid)} {site.reason(jobid)}"
            yield from ("  | " + line for line in site.log(jobid).splitlines()[-30:])
            yield from ("  | " + line for line in (site.output(jobid) + site.output(jobid, "err")).splitlines()[:30])
        yield "the startd's and the starters' logs:"
        yield from ("  | " + line for line in site.log_since(mark).splitlines()[-60:])
        yield "jobfence's log:"
        log = site.command("journalctl", "--no-pager", "-n", "200").stdout
        yield from ("  | " + line for line in log.splitlines() if "jobfence" in line)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--patience", type=float, metavar="FACTOR", default=6, help="multiplies every time limit (default: 6)")
    parser.add_argument("--release", action=argparse.BooleanOptionalAction,
                        help="only the cases that 'make check' leaves out, or only the others")
    parser.add_argument("--slice", type=part_of, default=(1, 1), metavar="K/N", help="of these every N-th, from the K-th on")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("cases", nargs="*", metavar="NAME")
    options = parser.parse_intermixed_args()
    unknown = set(options.cases) - {function.__name__ for function in CASES}
    if unknown:
        sys.exit(f"no such case: {', '.join(sorted(unknown))}")
    chosen = [function for function in CASES if not options.cases or function.__name__ in options.cases]
    chosen = [function for function in chosen if options.release in (None, function.release)]
    part, parts = options.slice
    chosen = chosen[part - 1::parts]
    chosen.sort(key=is_restarting)
    if options.list:
        print("\n".join(function.__name__ for function in chosen))
        return 0
    die_properly()
    shared.PATIENCE = options.patience
    with sites.InstalledHTCondor() as site:
        counts = HTCondorRunner().run(site, chosen)
    print(f"{counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
