# SPDX-License-Identifier: GPL-2.0-or-later
"""How fast this processor's time stamp counter counts, which is the one that an emulated x86 processor shows.

The guest's kernel finds that out by timers that the emulator serves when it comes to that. Once it took 2300 MHz for 130, and its clock
ran seventeen times as fast as everything else: what "30 seconds" were waited for had not two.
"""

import ctypes
import mmap
import os
import time

# rdtsc; shl $32, %rdx; or %rdx, %rax; ret
CODE = bytes.fromhex("0f31 48c1e220 4809d0 c3")


def khz(seconds=0.2):
    """In kHz; None where that cannot be measured."""
    if os.uname().machine != "x86_64":
        return None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None
    page.write(CODE)
    count = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(page)))

    def both():
        """What clock and counter show at one moment: the attempt in which the least time went by."""
        found = []
        for _ in range(200):
            before, ticks, after = time.monotonic_ns(), count(), time.monotonic_ns()
            found.append((after - before, before, ticks))
        return min(found)[1:]
    began, first = both()
    time.sleep(seconds)
    ended, last = both()
    return round((last - first) * 1e6 / (ended - began))
