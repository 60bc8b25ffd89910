#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""jobfence seen from outside, by real jobs in a real Grid Engine.

    python3 cases.py --site private --so PATH --bin PATH [NAME…]      in a Debian tree, on this machine
    python3 cases.py [NAME…]      in a virtual machine, where `start` has run
    python3 cases.py --list

Each case submits jobs as ordinary users and compares what it finds in the kernel's files with what qmaster says it has
granted. After each, nothing of it may be left, and the host must take jobs.
"""

import argparse
import os
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from contract import sites as shared  # noqa: E402
from contract.harness import CASES  # noqa: E402
from contract.runner import Runner, part_of  # noqa: E402
from contract.sites import die_properly, until  # noqa: E402

from gridengine import record, sites, suite  # noqa: E402, F401


TOP = Path(__file__).resolve().parents[2]
LACKS = 77


class GridEngineRunner(Runner):
    def before(self, site, function):
        site.configure()

    def after(self, site, known):
        """What must hold after every case; `known` is what an earlier one has left."""
        site.configure()
        if not site.execd_pid():
            site.start_execd()
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
            until(lambda: not site.host_state(), 20, "a host that takes jobs")
        except AssertionError:
            state = site.host_state()
            site.clear()
            raise AssertionError(f"the queue is in state {state}") from None

    def details(self, site, mark):
        for user, jobid in site.submitted:
            yield f"job {jobid} of {user}: {site.queued(jobid)} {site.reason(jobid)} {site.ends_of(jobid)[-1:]}"
            yield from ("  | " + line for line in (site.output(jobid) + site.told(jobid)).splitlines()[:30])
        yield "execd's log:"
        yield from ("  | " + line for line in site.log_since(mark).splitlines()[-20:])
        yield "jobfence's log:"
        yield from ("  | " + line for line in site.logged().splitlines()[-50:])


def privately(options, chosen):
    """The same program again, in a Debian tree; its exit status."""
    sys.path.insert(0, str(TOP / "tests/vm"))
    import image
    import place
    import tree

    if Path("/run/systemd/system").is_dir():
        print("cases: needs a machine without systemd, which delegates no cgroups to a tree in namespaces", file=sys.stderr)
        return LACKS
    base = f"jobfence-{os.getpid()}"
    tests, parts = "opt/jobfence-tests", ("contract", "gridengine", "leases.py")
    binds = [(TOP / "tests" / name, f"{tests}/{name}") for name in parts]
    binds += [(TOP / name, f"{tests}/jobfence/{name}") for name in ("plugstack", "hooks", "include", "docs", "README.md")]
    if options.record:
        (TOP / "tests/gridengine/recorded").mkdir(exist_ok=True)
    binds += [(options.so, f"{tests}/jobfence/target/release/libjobfence.so"), (options.bin, f"{tests}/jobfence/target/release/jobfence")]
    argv = ["python3", "-B", f"/{tests}/gridengine/cases.py", "--site", "private", "--base", base, "--patience", str(options.patience)]
    argv += ["--record"] * options.record + [function.__name__ for function in chosen]
    try:
        with tree.used(options.tree) as directory:
            return place.run(directory / "tree", binds, argv, base, {"PATH": shared.PATH, "LANG": "C.UTF-8", "HOME": "/root"})
    except image.Skip as reason:
        print(f"cases: {reason}", file=sys.stderr)
        return LACKS


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--site", choices=("private", "installed"), default="installed")
    parser.add_argument("--so", help="the library (private site)")
    parser.add_argument("--bin", help="the jobfence command (private site)")
    parser.add_argument("--tree", default="debian12-gridengine", help="of vm/tree.py (private site; default: debian12-gridengine)")
    parser.add_argument("--base", help=argparse.SUPPRESS)  # we are in the tree, with cgroups below this
    parser.add_argument("--slice", type=part_of, metavar="K/N", default=(1, 1), help="every N-th of the cases, from the K-th on")
    parser.add_argument("--patience", type=float, metavar="FACTOR", default=6, help="multiplies every time limit (default: 6)")
    parser.add_argument("--record", action="store_true", help="write what execd writes for its shepherds below recorded/, and run no case")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("cases", nargs="*", metavar="NAME")
    options = parser.parse_intermixed_args()
    fitting = [function for function in CASES if options.site in function.sites]
    unknown = set(options.cases) - {function.__name__ for function in fitting}
    if unknown:
        sys.exit(f"no such case for the {options.site} site: {', '.join(sorted(unknown))}")
    chosen = [function for function in fitting if not options.cases or function.__name__ in options.cases]
    part, parts = options.slice
    chosen = chosen[part - 1::parts]
    if options.list:
        print("\n".join(function.__name__ for function in chosen))
        return 0
    if options.site == "private" and not options.base:
        if not options.so or not options.bin:
            parser.error("a private site needs --so and --bin")
        die_properly()
        return privately(options, chosen)
    die_properly()
    shared.PATIENCE = options.patience
    start = time.monotonic()
    with sites.PrivateGridEngine(options.base) if options.base else sites.InstalledGridEngine() as site:
        print(f"Grid Engine is ready after {time.monotonic() - start:.1f} s", flush=True)
        if options.record:
            return record.record(site, Path(__file__).resolve().parent / "recorded")
        counts = GridEngineRunner().run(site, chosen)
    print(f"{counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
