# SPDX-License-Identifier: GPL-2.0-or-later
"""The plugin that makes jobfence's callbacks fail: see saboteur.c."""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from contract import kernel

SOURCE = Path(__file__).with_name("saboteur.c")
# The cells of the virtual machines bring it along: the guests have no compiler.
BUILT = SOURCE.with_name("libsaboteur.so")  # saboteur.so would be a module for Python
HEADER = Path(os.environ.get("SLURM_INCLUDE_DIR", "/usr/include"), "slurm/spank.h")


class CannotBuild(Exception):
    """What this machine lacks for it."""


def build(target):
    """Compile it as `target`, a file that every user can read."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise CannotBuild("no C compiler (package gcc)")
    if not HEADER.exists():
        raise CannotBuild(f"no {HEADER} (package libslurm-dev)")
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{HEADER.parents[1]}", "-o", target, SOURCE],
        capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"saboteur.c does not compile:\n{done.stderr}")
    target.chmod(0o755)
    return target


def plugin(site):
    if BUILT.exists():
        return BUILT
    target = site.home / BUILT.name
    return target if target.exists() else build(target)


@contextlib.contextmanager
def sabotaged(site, callback, action, *selection, kind="required", arguments=(), last=False):
    """For the time being, `action` happens before (`last`: after) jobfence's own callback.

    `selection` says in which steps (`step=…`) and so on; `kind` and `arguments` are jobfence's.
    """
    so = plugin(site)
    entry = "required" if action == "refuse" else "optional"
    line = " ".join([entry, str(so), f"callback={callback}", f"do={action}", *selection])
    if action in ("readonly", "rmdir", "threaded", "move", "astray", "disown"):
        tops = {f"top={h.mount_point}:{h.root}:{''.join(h.names[:1])}" for h in kernel.hierarchies().values()}
        line = " ".join([line, *sorted(tops)])
    if action == "forget":
        line += f" run={site.run_directory()}"
    undo = f"optional {so} callback={callback} do=restore" + (
        " context=slurmd" if "context=slurmd" in selection else "")
    before, after = ((), [line, undo]) if last else ([line], [undo])
    with site.plugstack(*arguments, kind=kind, before=before, after=after):
        yield
