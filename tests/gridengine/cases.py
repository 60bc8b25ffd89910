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
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from contract.runner import Program  # noqa: E402
from contract.sites import PATH, Lacks  # noqa: E402
from gridengine import record, suite  # noqa: E402, F401
from gridengine.sites import InstalledGridEngine, PrivateGridEngine  # noqa: E402

TOP = Path(__file__).resolve().parents[2]


class GridEngineProgram(Program):
    SCHEDULER = "gridengine"
    SITES = {"private": lambda options: PrivateGridEngine(options.base), "installed": lambda options: InstalledGridEngine()}
    PATIENCE = {"private": 6, "installed": 6}

    def arguments(self, doc):
        parser = super().arguments(doc)
        parser.add_argument("--tree", default="debian12-gridengine", help="of vm/tree.py (private site; default: debian12-gridengine)")
        parser.add_argument("--base", help=argparse.SUPPRESS)  # we are in the tree, with cgroups below this
        parser.add_argument("--record", action="store_true", help="write what execd writes for its shepherds below recorded/, and run no case")
        return parser

    def run(self, options, chosen):
        if options.site == "private" and not options.base:
            return self.again_in_a_tree(options, chosen)
        if options.record:
            with self.SITES[options.site](options) as site:
                return record.record(site, Path(__file__).resolve().parent / "recorded")
        return super().run(options, chosen)

    def again_in_a_tree(self, options, chosen):
        """The same program again, in a Debian tree; its exit status."""
        sys.path.insert(0, str(TOP / "tests/vm"))
        import image
        import place
        import tree

        if Path("/run/systemd/system").is_dir():
            raise Lacks("needs a machine without systemd, which delegates no cgroups to a tree in namespaces")
        base = f"jobfence-{os.getpid()}"
        tests, parts = "opt/jobfence-tests", ("contract", "gridengine", "leases.py")
        binds = [(TOP / "tests" / name, f"{tests}/{name}") for name in parts]
        binds += [(TOP / name, f"{tests}/jobfence/{name}") for name in ("plugstack", "hooks", "include", "docs", "README.md")]
        if options.record:
            (TOP / "tests/gridengine/recorded").mkdir(exist_ok=True)
        binds += [(options.so, f"{tests}/jobfence/target/release/libjobfence.so"), (options.bin, f"{tests}/jobfence/target/release/jobfence")]
        argv = ["python3", "-B", f"/{tests}/gridengine/cases.py", "--site", "private", "--base", base]
        argv += ["--patience", str(options.patience)] * bool(options.patience)
        argv += ["--record"] * options.record + [one.__name__ for one in chosen]
        try:
            with tree.used(options.tree) as directory:
                return place.run(directory / "tree", binds, argv, base, {"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/root"})
        except image.Skip as reason:
            raise Lacks(reason) from None


if __name__ == "__main__":
    GridEngineProgram().exit(__doc__)
