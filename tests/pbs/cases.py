#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""jobfence seen from outside, by real jobs in a real OpenPBS.

    OPENPBS=DIR python3 cases.py --site private --so PATH --bin PATH [NAME…]
    OPENPBS=DIR python3 cases.py --site hosts --so PATH --bin PATH [NAME…]      a job on two hosts
    python3 cases.py [NAME…]      in a virtual machine, where `start` has run
    python3 cases.py --list

Each case submits jobs as ordinary users and compares what it finds in the kernel's files with what the server says it
has granted. After each, nothing of it may be left and the node must be free. Exit status 77: this machine lacks
something, which the output names.
"""

import sys
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from contract.runner import Program  # noqa: E402
from pbs import suite  # noqa: E402, F401
from pbs.sites import HostsPbs, InstalledPbs, PrivatePbs  # noqa: E402


class PbsProgram(Program):
    SCHEDULER = "openpbs"
    SITES = {
        "private": lambda options: PrivatePbs(options.so, options.bin),
        "hosts": lambda options: HostsPbs(options.so, options.bin),
        "installed": lambda options: InstalledPbs(),
    }


if __name__ == "__main__":
    PbsProgram().exit(__doc__)
