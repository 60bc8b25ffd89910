#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""jobfence seen from outside, by real jobs in a real Grid Engine.

    python3 cases.py --site private --so PATH --bin PATH [NAME…]      in a Debian tree, on this machine
    python3 cases.py [NAME…]      in a virtual machine, where `start` has run
    python3 cases.py --list

Each case submits jobs as ordinary users and compares what it finds in the kernel's files with what qmaster says it has
granted. After each, nothing of it may be left, and the host must take jobs.
"""

import sys
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from contract.in_tree import InTreeProgram  # noqa: E402
from gridengine import record, suite  # noqa: E402, F401
from gridengine.sites import InstalledGridEngine, PrivateGridEngine  # noqa: E402

RECORDED = Path(__file__).resolve().parent / "recorded"


class GridEngineProgram(InTreeProgram):
    SCHEDULER, TREE = "gridengine", "debian12-gridengine"
    SITES = {"private": lambda options: PrivateGridEngine(options.base), "installed": lambda options: InstalledGridEngine()}

    def arguments(self, doc):
        parser = super().arguments(doc)
        parser.add_argument("--record", action="store_true", help="write what execd writes for its shepherds below recorded/, and run no case")
        return parser

    def run(self, options, chosen):
        if not options.record:
            return super().run(options, chosen)
        if options.site == "private" and not options.base:
            RECORDED.mkdir(exist_ok=True)
            return self.again(options, ["--record"])
        with self.SITES[options.site](options) as site:
            return record.record(site, RECORDED)


if __name__ == "__main__":
    GridEngineProgram().exit(__doc__)
