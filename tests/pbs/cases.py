#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""jobfence seen from outside, by real jobs in a real OpenPBS.

    OPENPBS=DIR python3 cases.py --site private --so PATH [--bin PATH] [NAME…]
    OPENPBS=DIR python3 cases.py --site hosts --so PATH [--bin PATH] [NAME…]      a job on two hosts
    python3 cases.py [NAME…]      in a virtual machine, where `start` has run
    python3 cases.py --list

Each case submits jobs as ordinary users and compares what it finds in the kernel's files with what the server says it
has granted. After each, nothing of it may be left and the node must be free. Exit status 77: this machine lacks
something, which the output names.
"""

import argparse
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from contract import sites as shared  # noqa: E402
from contract.harness import CASES  # noqa: E402
from contract.runner import Runner  # noqa: E402
from contract.sites import die_properly, until  # noqa: E402

from pbs import sites, suite  # noqa: E402, F401

LACKS = 77


class PbsRunner(Runner):
    def before(self, site, function):
        """The hook is there as shipped, or not at all."""
        wanted = getattr(function, "fenced", True)
        site.configure()
        if wanted and "jobfence" not in site.hooks:
            site.fence()
        elif not wanted and "jobfence" in site.hooks:
            site.remove_hook()

    def after(self, site, known):
        """What must hold after every case; `known` is what an earlier one has left."""
        site.configure()
        if "jobfence" in site.hooks:
            site.configure_hook(**site.hook_settings())
        if not site.mom_pid() or not shared.kernel.is_alive(site.mom_pid()):
            site.start_mom("-p")
        if site.submitted and not site.idle_again():
            site.qdel(*(jobid for _, jobid in site.submitted))
        until(site.idle_again, 60, "the end of every job")
        try:
            until(lambda: self.left(site) <= known, 10, "a clean tree")
        except AssertionError:
            left = sorted(self.left(site) - known)
            known.update(left)
            if left:
                raise AssertionError("left behind: " + ", ".join(left)) from None
        try:
            until(lambda: site.node_state() == "free", 20, "a free node")
        except AssertionError:
            state = site.node_state()
            site.resume()
            raise AssertionError(f"the node is {state}") from None

    def details(self, site, mark):
        for user, jobid in site.submitted:
            job = site.job(jobid)
            yield f"job {jobid} of {user}: {job.get('job_state')} {job.get('Exit_status')} {job.get('comment')}"
            yield from ("  | " + line for line in (site.output(jobid) + site.told(jobid)).splitlines()[:30])
        yield from (f"also there: {line}" for line in site.command("qstat", "-x").stdout.splitlines()[-5:])
        yield "MoM's log:"
        lines = [line for line in site.log_since(mark).splitlines() if ";Req;;Type " not in line and "print_hook" not in line]
        yield from ("  | " + line for line in lines[-40:])


SITES = {
    "private": lambda options: sites.PrivatePbs(options.so, options.bin),
    "hosts": lambda options: sites.HostsPbs(options.so, options.bin),
    "installed": lambda options: sites.InstalledPbs(),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--site", choices=tuple(SITES), default="installed")
    parser.add_argument("--so", help="the library (private sites)")
    parser.add_argument("--bin", help="the jobfence command (private sites)")
    parser.add_argument("--patience", type=float, metavar="FACTOR", help="multiplies every time limit: 1, or 3 for an installed site")
    parser.add_argument("--layout", action="store_true", help="only the cases in which the cgroup layout makes a difference")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("cases", nargs="*", metavar="NAME")
    return parser.parse_intermixed_args()


def main():
    options = arguments()
    fitting = [function for function in CASES if options.site in function.sites]
    unknown = set(options.cases) - {function.__name__ for function in fitting}
    if unknown:
        sys.exit(f"no such case for the {options.site} site: {', '.join(sorted(unknown))}")
    chosen = [f for f in fitting if not options.cases or f.__name__ in options.cases]
    chosen = [f for f in chosen if f.layout or not options.layout]
    if options.list:
        print("\n".join(function.__name__ for function in chosen))
        return 0
    die_properly()
    shared.PATIENCE = options.patience or (3 if options.site == "installed" else 1)
    start = time.monotonic()
    with SITES[options.site](options) as site:
        print(f"OpenPBS is ready after {time.monotonic() - start:.1f} s", flush=True)
        counts = PbsRunner().run(site, chosen)
    print(f"{counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except sites.Lacks as reason:
        print(f"cases: {reason}", file=sys.stderr)
        sys.exit(LACKS)
    except KeyboardInterrupt:
        sys.exit(130)
