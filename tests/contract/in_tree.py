# SPDX-License-Identifier: GPL-2.0-or-later
"""`cases.py` of a scheduler whose site 'private' is in a Debian tree, in namespaces of its own on this machine: see vm/place.py."""

import argparse
import os
import sys
from pathlib import Path

from .runner import Program
from .sites import PATH, Lacks

TOP = Path(__file__).resolve().parents[2]
# Where the tests are in the tree, and below them what an installation needs.
TESTS = "opt/jobfence-tests"
FOR_TESTS = f"{TESTS}/jobfence/target/debug/jobfence"
INSTALLED = ("plugstack", "hooks", "include", "docs", "README.md")


class InTreeProgram(Program):
    TREE = ""  # of vm/tree.py
    PATIENCE = {"private": 6, "installed": 6}

    def arguments(self, doc):
        parser = super().arguments(doc)
        parser.add_argument("--tree", default=self.TREE, help="of vm/tree.py (private site; default: %(default)s)")
        parser.add_argument("--bin-for-tests", metavar="FILE", type=Path,
                            help="the command as it is built for tests (private site): without it, a case of what is refused waits for minutes")
        parser.add_argument("--base", help=argparse.SUPPRESS)  # we are in the tree, with cgroups below this
        return parser

    def run(self, options, chosen):
        if options.site == "private" and not options.base:
            return self.again(options, [one.__name__ for one in chosen])
        return super().run(options, chosen)

    def again(self, options, words, *binds):
        """The same program again, in a Debian tree that has these, too; its exit status."""
        sys.path.insert(0, str(TOP / "tests/vm"))
        import image
        import place
        import tree

        if Path("/run/systemd/system").is_dir():
            raise Lacks("needs a machine without systemd, which delegates no cgroups to a tree in namespaces")
        base = f"jobfence-{os.getpid()}"
        binds = [*binds, *((TOP / "tests" / name, f"{TESTS}/{name}") for name in ("contract", self.SCHEDULER, "leases.py"))]
        binds += [(TOP / name, f"{TESTS}/jobfence/{name}") for name in INSTALLED]
        built = (options.so, "libjobfence.so"), (options.bin, "jobfence")
        binds += [(path, f"{TESTS}/jobfence/target/release/{name}") for path, name in built]
        binds += [(options.bin_for_tests, FOR_TESTS)] * bool(options.bin_for_tests)
        argv = ["python3", "-B", f"/{TESTS}/{self.SCHEDULER}/cases.py", "--site", "private", "--base", base]
        argv += ["--patience", str(options.patience)] * bool(options.patience)
        try:
            with tree.used(options.tree) as directory:
                return place.run(directory / "tree", binds, [*argv, *words], base, {"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/root"})
        except image.Skip as reason:
            raise Lacks(reason) from None
