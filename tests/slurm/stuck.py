#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A file system that never answers, as a network file system whose server is gone: stuck.py DIRECTORY

Mounts it there, says "mounted", and from then on reads what the kernel asks and says nothing. Who waits for it does so inside the
kernel, where no signal reaches him (fs/fuse/dev.c, request_wait_answer), until this program ends; then it is unmounted.
"""

import ctypes
import os
import signal
import struct
import sys

MS_NOSUID_NODEV_NOEXEC, MNT_DETACH = 2 | 4 | 8, 2
LIBC = ctypes.CDLL(None, use_errno=True)


def main(directory):
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if LIBC.mount(b"stuck", directory.encode(), b"fuse.stuck", MS_NOSUID_NODEV_NOEXEC, options):
        sys.exit(f"mount {directory}: {os.strerror(ctypes.get_errno())}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        # struct fuse_in_header: length, opcode, unique, …; FUSE_INIT is the first request. struct fuse_init_out begins with the
        # version; 7.23 has 64 bytes of it.
        request = os.read(fd, 1 << 17)
        unique, = struct.unpack_from("<Q", request, 8)
        answer = struct.pack("<IIIIHHI36x", 7, 23, 0, 0, 1, 1, 4096)
        os.write(fd, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)
        print("mounted", flush=True)
        while True:
            os.read(fd, 1 << 17)
    finally:
        LIBC.umount2(directory.encode(), MNT_DETACH)
        os.close(fd)


if __name__ == "__main__":
    main(sys.argv[1])
