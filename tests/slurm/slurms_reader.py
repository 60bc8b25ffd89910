# SPDX-License-Identifier: GPL-2.0-or-later
"""What Slurm's own reader of slurm.conf finds in files: slurms_reader.py KEY,KEY… FILE… prints a JSON list of its values for each.

It calls `s_p_parse_file` of the library that slurmd has its functions from, in a process of its own: what Slurm refuses it logs.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys

S_P_STRING = 1
# `slurm_api_version() >> 16` of 23.02, which has given an option two functions more; and of 23.11, which passes over patterns.
OF_23_02, OF_23_11 = 39, 40


def library():
    """The file that the dynamic loader finds for slurmd."""
    slurmd = shutil.which("slurmd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    said = subprocess.run([slurmd, "-V"], env={"LD_TRACE_LOADED_OBJECTS": "1"}, capture_output=True, text=True, check=True).stdout
    return next(line.split()[2] for line in said.splitlines() if "libslurmfull.so => " in line)


def loaded():
    # Its own error(), and not that of glibc, which ends the process.
    slurm = ctypes.CDLL(library(), mode=os.RTLD_NOW | os.RTLD_DEEPBIND)
    slurm.slurm_api_version.restype = ctypes.c_long
    return slurm, slurm.slurm_api_version() >> 16


def values(slurm, api, keys, file):
    """The value of each key, or None."""
    class Option(ctypes.Structure):
        _fields_ = [("key", ctypes.c_char_p), ("type", ctypes.c_int),
                    ("rest", ctypes.c_void_p * (3 if api < OF_23_02 else 5))]

    # The cluster's name can stand in that of an included file.
    known = [*keys, "ClusterName"]
    options = (Option * (len(known) + 1))(*(Option(key.encode(), S_P_STRING) for key in known))
    slurm.s_p_hashtbl_create.restype = ctypes.c_void_p
    table = ctypes.c_void_p(slurm.s_p_hashtbl_create(options))
    os.environ["SLURM_CONF"] = file
    # All that follows the file's name is nothing, in each release.
    slurm.s_p_parse_file(table, None, file.encode(), 0, None, 0)
    found = []
    for key in keys:
        text = ctypes.c_char_p()
        has = slurm.s_p_get_string(ctypes.byref(text), key.encode(), table)
        found.append(text.value.decode("utf-8", "replace") if has else None)
    return found


if __name__ == "__main__":
    SLURM, API = loaded()
    print(json.dumps([values(SLURM, API, sys.argv[1].split(","), file) for file in sys.argv[2:]]))
