#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""jobfence seen from outside, by real jobs in a real HTCondor.

    python3 cases.py --site private --so PATH --bin PATH [NAME…]      in a Debian tree, on this machine
    python3 cases.py [NAME…]      in a virtual machine, where `start` has run
    python3 cases.py --list

Each case submits jobs as ordinary users and compares what it finds in the kernel's files with what the startd says it has
granted. After each, nothing of it may be left, and the pool must answer.
"""

import sys
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from contract.harness import CASES  # noqa: E402
from contract.in_tree import InTreeProgram  # noqa: E402
from htcondor import suite  # noqa: E402, F401
from htcondor.private import IN_GUESTS, PrivateHTCondor  # noqa: E402
from htcondor.sites import InstalledHTCondor  # noqa: E402


class HTCondorProgram(InTreeProgram):
    SCHEDULER, TREE = "htcondor", "debian13-htcondor"
    SITES = {"private": lambda options: PrivateHTCondor(options.base), "installed": lambda options: InstalledHTCondor()}

    def chosen(self, options):
        if options.site == "private":
            self.leave_to_guests()
        return sorted(super().chosen(options), key=lambda one: getattr(one, "restarts", False))

    def leave_to_guests(self):
        for one in CASES:
            if one.__name__ in IN_GUESTS or self.is_for_a_release(one):
                one.sites = ("installed",)


if __name__ == "__main__":
    HTCondorProgram().exit(__doc__)
