#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A file system with the files of resctrl that keeps to the kernel's rules, for machines without such a CPU.

usage: fake.py DIRECTORY [KEY=VALUE...]

It mounts itself on DIRECTORY by FUSE, in a mount namespace of its own, says `ready`, and ends with its stdin. Others reach it by
`nsenter --mount=/proc/PID/ns/mnt`. The rules are those of Documentation/filesystems/resctrl.rst, fs/resctrl/rdtgroup.c and
fs/resctrl/ctrlmondata.c: masks in a row, enough bits, exclusive groups, steps of bandwidth, as many groups as there are CLOSIDs, one
thread in one group, and info/last_cmd_status. What the kernel knows and this does not: a child in its parent's group. Each process that
is in no other group counts as one of the default group, whose `tasks` is empty here.

A counter of a group is 0 at first (mkdir_mondata_subdir). What the CPU has counted since, a test writes into the file, which the kernel
does not let anybody write.

Keys: `l3` (the mask of all ways, 0: no cache), `least` (min_cbm_bits), `devices` (shareable_bits), `sparse`, `cdp`, `mb` (what a group
begins with: 100, 2048 on AMD's, 4294967295 with mba_MBps, 0: no bandwidth), `mb_least`, `mb_step`, `linear` (delay_linear), `closids`, `domains`
(such as 0,1), `counters` (mon_features, with commas).
"""

import ctypes
import errno
import os
import select
import stat
import struct
import sys

ROOT, IN_HEADER = 1, struct.Struct("<IIQQIIIHH")
LOOKUP, FORGET, GETATTR, SETATTR, MKDIR, RMDIR, OPEN, READ, WRITE, STATFS = 1, 2, 3, 4, 9, 11, 14, 15, 16, 17
RELEASE, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, ACCESS, INTERRUPT, DESTROY, BATCH_FORGET = 18, 25, 26, 27, 28, 29, 34, 36, 38, 42
DIRECT_IO = 1


class Refused(Exception):
    pass


class Group:
    """A group of the kernel's: what it may use, by resource and domain, and its threads."""

    def __init__(self, schemata, counters):
        self.schemata, self.tasks, self.mode = schemata, set(), "shareable"
        self.counted = dict.fromkeys(counters, "0\n")


class Resctrl:
    """The kernel's side: its rules."""

    def __init__(self, keys):
        self.all, self.least, self.devices = int(keys["l3"], 16), int(keys["least"]), int(keys["devices"], 16)
        self.is_sparse, self.is_cdp = keys["sparse"] == "1", keys["cdp"] == "1"
        self.most, self.mb_least, self.mb_step = int(keys["mb"]), int(keys["mb_least"]), int(keys["mb_step"])
        self.closids, self.domains = int(keys["closids"]), [int(one) for one in keys["domains"].split(",")]
        self.is_linear, self.status = keys["linear"] == "1", "ok"
        self.features = keys["counters"].split(",") if keys["counters"] else []
        self.counters = [(f"mon_L3_{domain:02}", name) for domain in self.domains for name in self.features]
        self.groups = {"": Group(self.defaults(), self.counters)}

    def caches(self):
        return [] if not self.all else ["L3CODE", "L3DATA"] if self.is_cdp else ["L3"]

    def defaults(self):
        schemata = {name: dict.fromkeys(self.domains, self.all) for name in self.caches()}
        if self.most:
            schemata["MB"] = dict.fromkeys(self.domains, self.most)
        return schemata

    def refuse(self, number, why):
        self.status = why
        raise OSError(number, why)

    def exclusive(self, domain, but=None):
        """The ways that exclusive groups have."""
        of = [group for group in self.groups.values() if group.mode == "exclusive" and group is not but]
        mask = 0
        for group in of:
            for name in self.caches():
                mask |= group.schemata[name][domain]
        return mask

    def make(self, name):
        """rdtgroup_mkdir_ctrl_mon: a CLOSID for each, and at first all ways that are not exclusive, in a row."""
        self.status = "ok"
        if len(self.groups) >= self.closids:
            self.refuse(errno.ENOSPC, "Out of CLOSIDs")
        group = Group(self.defaults(), self.counters)
        for name_of in self.caches():
            for domain in self.domains:
                free = self.all & ~self.exclusive(domain)
                first = (free & -free).bit_length() - 1 if free else 0
                length = 0
                while free >> (first + length) & 1:
                    length += 1
                if length < max(self.least, 1):
                    self.refuse(errno.ENOSPC, f"No space on {name_of}:{domain}\nFailed to initialize allocations")
                group.schemata[name_of][domain] = ((1 << length) - 1) << first
        self.groups[name] = group

    def remove(self, name):
        """Its threads are the default group's from now on."""
        if not self.groups.pop(name, None):
            raise OSError(errno.ENOENT, name)

    def write_schemata(self, name, text):
        """rdtgroup_schemata_write: all of it or nothing."""
        self.status = "ok"
        group = self.groups[name]
        if not text.endswith("\n"):
            raise OSError(errno.EINVAL, "no newline")
        staged = []
        for line in text[:-1].split("\n"):
            resource, colon, values = line.partition(":")
            if not colon:
                self.refuse(errno.EINVAL, "Missing ':'")
            if not values:
                self.refuse(errno.EINVAL, f"Missing '{resource.strip()}' value")
            if resource.strip() not in group.schemata:
                self.refuse(errno.EINVAL, f"Unknown or unsupported resource name '{resource.strip()}'")
            for part in filter(None, values.split(";")):
                domain, equals, value = part.partition("=")
                if not equals or not domain.strip().isdigit():
                    self.refuse(errno.EINVAL, "Missing '=' or non-numeric domain")
                if int(domain) not in self.domains:
                    raise OSError(errno.EINVAL, "no such domain")
                check = self.bandwidth if resource.strip() == "MB" else self.mask
                staged.append((resource.strip(), int(domain), check(group, int(domain), value.strip())))
        for resource, domain, value in staged:
            group.schemata[resource][domain] = value

    def bandwidth(self, _group, _domain, text):
        """bw_validate."""
        if not self.is_linear:
            self.refuse(errno.EINVAL, "No support for non-linear MB domains")
        if not text.isdigit():
            self.refuse(errno.EINVAL, f"Invalid MB value {text}")
        value = int(text)
        if self.most == 0xFFFFFFFF:
            return value
        if value < self.mb_least or value > self.most:
            self.refuse(errno.EINVAL, f"MB value {value} out of range [{self.mb_least},{self.most}]")
        return -(-value // self.mb_step) * self.mb_step

    def mask(self, group, domain, text):
        """cbm_validate and parse_cbm."""
        try:
            mask = int(text, 16)
        except ValueError:
            self.refuse(errno.EINVAL, f"Non-hex character in the mask {text}")
        if self.least > 0 and mask == 0 or mask > self.all:
            self.refuse(errno.EINVAL, "Mask out of range")
        shifted = mask >> ((mask & -mask).bit_length() - 1) if mask else 0
        first = ((shifted ^ (shifted + 1)) + 1).bit_length() - 2 if mask else 0
        if not self.is_sparse and shifted & (shifted + 1):
            self.refuse(errno.EINVAL, f"The mask {mask:x} has non-consecutive 1-bits")
        if first < self.least:
            self.refuse(errno.EINVAL, f"Need at least {self.least} bits in the mask")
        if mask & self.exclusive(domain, but=group):
            self.refuse(errno.EINVAL, "Overlaps with exclusive group")
        return mask

    def write_tasks(self, name, text):
        """rdtgroup_tasks_write of Linux before 6.7: one thread."""
        self.status = "ok"
        try:
            thread = int(text.strip())
        except ValueError:
            raise OSError(errno.EINVAL, text) from None
        if thread < 0:
            raise OSError(errno.EINVAL, text)
        # 0 is the writer: no test of ours means that.
        if thread == 0 or not os.path.exists(f"/proc/{thread}"):
            self.refuse(errno.ESRCH, f"No task {thread}")
        for group in self.groups.values():
            group.tasks.discard(thread)
        if name:
            self.groups[name].tasks.add(thread)

    def write_mode(self, name, text):
        """rdtgroup_mode_write: exclusive only if no other group has any of its ways."""
        self.status = "ok"
        group, wanted = self.groups[name], text.strip()
        if wanted not in ("shareable", "exclusive"):
            self.refuse(errno.EINVAL, "Unknown or unsupported mode")
        for resource in self.caches() if wanted == "exclusive" else ():
            for domain in self.domains:
                others = [other.schemata[resource][domain] for other in self.groups.values() if other is not group]
                if any(group.schemata[resource][domain] & other for other in others):
                    self.refuse(errno.EINVAL, "Schemata overlaps")
        group.mode = wanted

    def usage(self, resource, domain):
        """rdt_bit_usage_show."""
        shared, letters = 0, ""
        for group in self.groups.values():
            shared |= group.schemata[resource][domain] if group.mode == "shareable" else 0
        exclusive = self.exclusive(domain)
        for bit in reversed(range(self.all.bit_length())):
            hardware, software = self.devices >> bit & 1, shared >> bit & 1
            letters += "X" if hardware and software else "H" if hardware else "S" if software else "E" if exclusive >> bit & 1 else "0"
        return letters

    def files(self):
        """All files by their paths: what is read, and what a write does."""
        found = {("info", "last_cmd_status"): (lambda: self.status + "\n", None)}
        for name in self.caches():
            closids = self.closids // (2 if self.is_cdp else 1)
            for file, text in (
                ("cbm_mask", f"{self.all:x}"), ("min_cbm_bits", self.least), ("shareable_bits", f"{self.devices:x}"),
                ("num_closids", closids), ("sparse_masks", int(self.is_sparse)),
                ("bit_usage", ";".join(f"{domain}={self.usage(name, domain)}" for domain in self.domains)),
            ):
                found[("info", name, file)] = (lambda text=text: f"{text}\n", None)
        for file, text in (
            ("min_bandwidth", self.mb_least), ("bandwidth_gran", self.mb_step), ("num_closids", self.closids),
        ) if self.most else ():
            found[("info", "MB", file)] = (lambda text=text: f"{text}\n", None)
        if self.features:
            found[("info", "L3_MON", "mon_features")] = (lambda: "".join(f"{name}\n" for name in self.features), None)
        for name, group in self.groups.items():
            top = (name,) if name else ()
            for counter in self.counters:
                found[top + ("mon_data", *counter)] = (
                    lambda group=group, counter=counter: group.counted[counter],
                    lambda text, group=group, counter=counter: group.counted.update({counter: text}),
                )
            found[top + ("tasks",)] = (
                lambda group=group: "".join(f"{task}\n" for task in sorted(group.tasks) if os.path.exists(f"/proc/{task}")),
                lambda text, name=name: self.write_tasks(name, text),
            )
            found[top + ("schemata",)] = (
                lambda group=group: self.printed(group), lambda text, name=name: self.write_schemata(name, text),
            )
            found[top + ("mode",)] = (lambda group=group: group.mode + "\n", lambda text, name=name: self.write_mode(name, text))
        return found

    def printed(self, group):
        width = max((len(name) for name in group.schemata), default=0)
        lines = []
        for name, values in group.schemata.items():
            form = "{}={:4d}" if name == "MB" else f"{{}}={{:0{(self.all.bit_length() + 3) // 4}x}}"
            lines.append(f"{name:>{width}}:" + ";".join(form.format(*value) for value in values.items()) + "\n")
        return "".join(lines)


class Server:
    """FUSE's side (include/uapi/linux/fuse.h): nodes are numbered as they are looked up."""

    def __init__(self, resctrl, device):
        self.resctrl, self.device = resctrl, device
        self.paths, self.numbers = {ROOT: ()}, {(): ROOT}

    def number(self, path):
        if path not in self.numbers:
            self.numbers[path] = max(self.paths) + 1
            self.paths[self.numbers[path]] = path
        return self.numbers[path]

    def kind(self, path):
        files = self.resctrl.files()
        if path in files:
            return stat.S_IFREG | (0o644 if files[path][1] else 0o444)
        if path == () or any(file[: len(path)] == path for file in files):
            return stat.S_IFDIR | 0o755
        raise OSError(errno.ENOENT, "/".join(path))

    def attributes(self, path):
        # No file has a size, as those of the kernel.
        return struct.pack("<QQQQQQIIIIIIIIII", self.number(path), 0, 0, 0, 0, 0, 0, 0, 0, self.kind(path), 1, 0, 0, 0, 4096, 0)

    def entry(self, path):
        kind = self.attributes(path)
        return struct.pack("<QQQQII", self.number(path), 0, 0, 0, 0, 0) + kind

    def answer(self, opcode, node, body):
        path = self.paths.get(node, ())
        if opcode == INIT:
            major, minor, readahead, _ = struct.unpack_from("<IIII", body)
            return struct.pack("<IIIIHHIIHHI28x", 7, min(minor, 31), readahead, 0, 16, 12, 65536, 1, 16, 0, 0)
        if opcode == LOOKUP:
            return self.entry(path + (body.rstrip(b"\0").decode(),))
        if opcode in (GETATTR, SETATTR):
            return struct.pack("<QII", 0, 0, 0) + self.attributes(path)
        if opcode == MKDIR:
            name = body[8:].rstrip(b"\0").decode()
            if path or name in self.resctrl.groups or name == "info":
                raise OSError(errno.EEXIST if not path else errno.EPERM, name)
            self.resctrl.make(name)
            return self.entry((name,))
        if opcode == RMDIR:
            name = body.rstrip(b"\0").decode()
            self.resctrl.remove(name)
            # Another group of the name has other nodes: the kernel takes those of this one for dead.
            for gone in [path for path in self.numbers if path[:1] == (name,)]:
                self.paths[self.numbers.pop(gone)] = ("", "gone")
            return b""
        if opcode in (OPEN, OPENDIR):
            self.kind(path)
            return struct.pack("<QII", 0, DIRECT_IO if opcode == OPEN else 0, 0)
        if opcode == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            files = self.resctrl.files()
            if path not in files:
                raise OSError(errno.ENODEV, "the group is gone")
            return files[path][0]().encode()[offset : offset + size]
        if opcode == WRITE:
            _, _, size = struct.unpack_from("<QQI", body)
            write = self.resctrl.files().get(path, (None, None))[1]
            if not write:
                raise OSError(errno.EACCES, "/".join(path))
            write(body[40 : 40 + size].decode())
            return struct.pack("<II", size, 0)
        if opcode == READDIR:
            _, offset, size = struct.unpack_from("<QQI", body)
            below = sorted({file[len(path)] for file in self.resctrl.files() if file[: len(path)] == path})
            data = b""
            for at, name in enumerate(below[offset:], offset + 1):
                kind = 4 if stat.S_ISDIR(self.kind(path + (name,))) else 8
                entry = struct.pack("<QQII", self.number(path + (name,)), at, len(name), kind) + name.encode()
                entry += b"\0" * (-len(entry) % 8)
                if len(data) + len(entry) > size:
                    break
                data += entry
            return data
        if opcode == STATFS:
            return struct.pack("<QQQQQIIII24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0)
        if opcode in (RELEASE, RELEASEDIR, FLUSH, ACCESS, DESTROY):
            return b""
        raise OSError(errno.ENOSYS, str(opcode))

    def serve(self):
        request = os.read(self.device, 1 << 17)
        _, opcode, unique, node, *_ = IN_HEADER.unpack_from(request)
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            return
        try:
            error, data = 0, self.answer(opcode, node, request[IN_HEADER.size :])
        except OSError as refused:
            error, data = -refused.errno, b""
        try:
            os.write(self.device, struct.pack("<IiQ", 16 + len(data), error, unique) + data)
        except OSError as refused:
            # Who asked was killed meanwhile.
            if refused.errno != errno.ENOENT:
                raise


def main():
    directory, *settings = sys.argv[1:]
    keys = dict(l3="7ff", least="1", devices="600", sparse="0", cdp="0", mb="100", mb_least="10", mb_step="10", closids="16", domains="0,1", linear="1")
    keys["counters"] = "llc_occupancy,mbm_total_bytes,mbm_local_bytes"
    keys.update(setting.split("=") for setting in settings)
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result):
        if result:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    check(libc.unshare(0x00020000))  # CLONE_NEWNS
    check(libc.mount(b"none", b"/", None, 1 << 18 | 1 << 14, None))  # MS_PRIVATE | MS_REC
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    check(libc.mount(b"fake", os.fsencode(directory), b"fuse", 0, options.encode()))
    server = Server(Resctrl(keys), device)
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([device, sys.stdin], [], [])
        if device in ready:
            server.serve()
        elif not os.read(0, 1):
            os._exit(0)


if __name__ == "__main__":
    main()
