# SPDX-License-Identifier: GPL-2.0-or-later
"""The programs that cargo builds of the benchmarks, whose file names only cargo knows."""

import json
import subprocess
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent


def built(name):
    """Builds a benchmark, and says where its program is."""
    said = subprocess.run(["cargo", "bench", "--locked", "--bench", name, "--no-run", "--message-format=json"], cwd=TOP,
                          check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    programs = (json.loads(line).get("executable") for line in said)
    return next(program for program in programs if program and f"/{name}-" in program)
