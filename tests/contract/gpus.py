# SPDX-License-Identifier: GPL-2.0-or-later
"""GPUs of a node that has none: devices that it has, under other names."""

import contextlib
import os
import stat
import tempfile

GPUS = "cpu_dma_latency", "loop-control", "fuse", "autofs", "vcs"
# What a job sees of GPUs.
SHOW_GPUS = "for gpu in {}/*; do (: <$gpu) 2>/dev/null && echo ${{gpu##*/}}; done; echo CUDA=${{CUDA_VISIBLE_DEVICES-unset}}; "


def can_be_opened(path):
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def gpus_of_the_node(numbers, is_local=False):
    """The directory of nodes that are called as GPUs: devices that anybody can open who may, or numbers without a driver."""
    # Not in /tmp, which may be a file system without devices.
    with tempfile.TemporaryDirectory(prefix="jobfence-gpus-", dir="/var/tmp") as top:
        os.chmod(top, 0o755)
        devices = [os.stat(f"/dev/{name}").st_rdev for name in GPUS if can_be_opened(f"/dev/{name}")]
        if is_local:
            devices = [os.makedev(60, number) for number in numbers]
        for number, device in zip(numbers, devices):
            node = f"{top}/nvidia{number}"
            os.mknod(node, stat.S_IFCHR | 0o666, device)
            os.chmod(node, 0o666)
        yield top
