#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""jobfence seen from outside, by real jobs in a real Slurm.

    python3 cases.py --site private --so PATH --bin PATH [--only NAME…]
    python3 cases.py --site two-nodes --so PATH --bin PATH [--settings DIRECTORY]
    python3 cases.py --site installed
    python3 cases.py [--site SITE] --list

Each case submits jobs as ordinary users and compares what it finds in the kernel's files
with what was granted. After each, nothing of it may be left and the node must be idle.
"""

import sys
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from contract import kernel  # noqa: E402
from contract.runner import Program  # noqa: E402
from contract.sites import SiteError  # noqa: E402
from slurm import suite  # noqa: E402, F401
from slurm.sites import InstalledSite, PrivateSite, TwoNodesSite  # noqa: E402


class SlurmProgram(Program):
    SCHEDULER, DEFAULT = "slurm", "private"
    SITES = {
        "private": lambda options: PrivateSite(options.so, options.bin, options.users, options.settings),
        "two-nodes": lambda options: TwoNodesSite(options.so, options.bin, options.users, options.settings),
        "installed": lambda options: InstalledSite(),
    }

    def arguments(self, doc):
        parser = super().arguments(doc)
        parser.add_argument("--settings", metavar="DIRECTORY", help="with slurm.conf and cgroup.conf: lines for those of a private site")
        parser.add_argument("--bin-for-tests", metavar="FILE", type=Path,
                            help="the command as it is built for tests: without it, a case of idle time waits for minutes")
        parser.add_argument("--users", nargs=2, metavar="USER",
                            help="of a private site, and no other's beside it; without this, two with nothing to do")
        return parser

    def entered(self, options, stack):
        """The site. It is begun once more if Slurm itself did not start: in a guest, systemd can be too slow for slurmd's scope."""
        try:
            site = super().entered(options, stack)
        except SiteError as error:
            print(f"once more, since Slurm did not start: {error}", flush=True)
            site = super().entered(options, stack)
        site.for_tests = options.bin_for_tests and options.bin_for_tests.resolve()
        kernel.slurm_limits_memory = site.slurm_limits_memory()
        kernel.slurm_tracks = site.slurm_tracks()
        return site


if __name__ == "__main__":
    SlurmProgram().exit(__doc__)
