#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""jobfence at work: what `make demo` runs, in a private Slurm or OpenPBS on this machine, or in a virtual machine with its scheduler.

    python3 demo.py --so target/release/libjobfence.so --bin target/release/jobfence
    OPENPBS=DIR python3 demo.py --scheduler openpbs --so target/release/libjobfence.so --bin target/release/jobfence

Needs root, and Slurm and munge installed (none of it running), or in DIR the tree of an OpenPBS that was never started. It
touches no configuration of the machine. The exit status is not 0 if one of the claims is not so.
"""

import argparse
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
sys.path.insert(0, str(Path(__file__).resolve().parent))

from contract import demo, kernel, sites  # noqa: E402
from contract.runner import ended  # noqa: E402


def site_of(options):
    """Each is imported alone: a virtual machine has the files of its scheduler."""
    if options.scheduler == "slurm":
        from slurm.sites import PrivateSite
        return PrivateSite(options.so, options.bin)
    if options.scheduler == "openpbs":
        from pbs.sites import PrivatePbs
        return PrivatePbs(options.so, options.bin)
    if options.scheduler == "gridengine":
        from gridengine.sites import InstalledGridEngine
        return InstalledGridEngine()
    from htcondor.sites import InstalledHTCondor
    return InstalledHTCondor()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scheduler", choices=("slurm", "openpbs", "gridengine", "htcondor"), default="slurm")
    parser.add_argument("--so", help="the shared object, where the scheduler is a private one")
    parser.add_argument("--bin", help="the jobfence command, the same")
    parser.add_argument("--patience", type=float, metavar="FACTOR", help="by which this machine is slower than others; 3 in a virtual machine")
    options = parser.parse_args()
    is_private = options.scheduler in ("slurm", "openpbs")
    sites.PATIENCE = options.patience or (1 if is_private else 3)
    if os.geteuid() != 0:
        sys.exit("the demo starts jobs of users and needs to be root for it")
    if is_private and not Path(options.so or "").is_file():
        sys.exit(f"there is no {options.so}: build it first")
    sites.die_properly()
    print(f"{options.scheduler} ({kernel.layout()}, {os.cpu_count()} CPUs)…", flush=True)
    try:
        return demo.shown(site_of(options))
    except sites.SiteError as error:
        sys.exit(f"{options.scheduler} does not work: {error}")


if __name__ == "__main__":
    ended(main)
