# SPDX-License-Identifier: GPL-2.0-or-later
"""What the kernel itself says about a job's cgroups.

Nothing here asks jobfence: the tests compare its words with these. A path is
always one as in /proc/PID/cgroup; a `Group` is a step or a job, in each hierarchy
either in a directory of jobfence's or in Slurm's own.
"""

import contextlib
import functools
import os
import re
from pathlib import Path

# v1 says "no limit" with the greatest multiple of a page that fits in 63 bits.
V1_UNLIMITED = 1 << 62

# A step's directory, and below it those of its tasks, where a task is limited.
# Behind the step: a task's own directory, or what is in a starter's fence under HTCondor (`site`: in_another_directory).
OURS = re.compile(r"^(.*/uid_\d+/job_[^/]+/step_[^/]+)(?:/task_\d+|/starter|/user(?:/.*)?|/(?:htcondor|docker|site)/.*)?$")
# In the flags of /proc/PID/stat (include/linux/sched.h).
PF_EXITING = 0x4
# What Slurm's own plugins make: the step's directory, and on v2 what holds its tasks.
SLURMS = (
    re.compile(r"^.*slurmstepd\.scope/(?!system/)[^/]+/step_[^/]+/user(?=/|$)"),
    re.compile(r"^.*/slurm(_[^/]*)?/uid_\d+/job_[^/]+/step_[^/]+"),
)
# On v2 Slurm's step daemons live in the job's directory: what it gets beyond the grant for them.
HEADROOM_CPUS = 1.0
HEADROOM_PROCESSES = 64  # for each of them
# Whether Slurm's task/cgroup limits memory itself; set when the site is known.
slurm_limits_memory = False
# Whether proctrack/cgroup does; it removes what it has made, and the others may not.
slurm_tracks = False


class Hierarchy:
    """One mounted cgroup hierarchy; `names` are its v1 controllers, empty for cgroup2."""

    def __init__(self, mount_point, root, names):
        self.mount_point = Path(mount_point)
        self.root = root
        self.names = names

    def directory(self, path):
        """Where a path as in /proc/PID/cgroup is found in the file system."""
        inside = os.path.relpath(path, self.root)
        return self.mount_point / inside if inside != "." else self.mount_point


def hierarchies():
    """Every hierarchy of this host, by controller name; "" is cgroup2."""
    return hierarchies_in(read("/proc/self/mountinfo"))


@functools.lru_cache(maxsize=1)
def hierarchies_in(mountinfo):
    found = {}
    for line in mountinfo.splitlines():
        before, after = line.split(" - ")
        root, mount_point = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == "cgroup2":
            found.setdefault("", Hierarchy(mount_point, root, ()))
        elif kind == "cgroup":
            names = tuple(o for o in options.split(",") if o in V1_CONTROLLERS)
            for name in names:
                found.setdefault(name, Hierarchy(mount_point, root, names))
    return found


V1_CONTROLLERS = {
    "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids",
    "net_cls", "net_prio", "perf_event", "hugetlb", "rdma", "misc",
}

# How v1 calls the limits of io.max.
V1_IO = {"rbps": "read_bps", "wbps": "write_bps", "riops": "read_iops", "wiops": "write_iops"}


def has_v2_controllers():
    """True where the limits are set on cgroup2: on hybrid hosts it has no controllers."""
    return "memory" in controllers_of_v2()


def controllers_of_v2():
    """The controllers that cgroup2 has, none where there is no cgroup2."""
    unified = hierarchies().get("")
    return read(unified.mount_point / "cgroup.controllers").split() if unified else []


def layout():
    if has_v2_controllers():
        return "cgroup v2"
    return "hybrid" if "" in hierarchies() else "cgroup v1"


def expected_hierarchies():
    """The controllers by whose hierarchies a fenced process must be held."""
    return {
        "cgroup v2": {""},
        "hybrid": {"", "cpu", "memory"},
        "cgroup v1": {"cpu", "memory", "freezer"},
    }[layout()]


def read(path):
    """The file's text, or "" where there is no such file."""
    return read_bytes(path).decode(errors="replace").strip()


def read_bytes(path):
    """Without Python's file objects, which an emulated processor makes in several times the time of the kernel's part."""
    parts = []
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        while part := os.read(file, 1 << 16):
            parts.append(part)
    except OSError:
        return b""
    finally:
        os.close(file)
    return b"".join(parts)


def directories_below(top):
    """All that are there while we look. (Path.rglob raises what becomes of a directory that goes meanwhile.)"""
    return [Path(place, name) for place, names, _ in os.walk(top) for name in names]


def cgroups_of(pid):
    """The process's cgroup by controller name ("" is cgroup2), empty if it has gone."""
    return paths_by_controller(read(f"/proc/{pid}/cgroup"))


def paths_by_controller(text):
    found = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            found[name] = path
    return found


class Group:
    """A step, a job, a user or a task: one directory in each hierarchy.

    `path` is jobfence's own, the same in every hierarchy; `slurms` has by controller ("" is
    cgroup2) those in which the processes are in Slurm's own directories instead.
    """

    def __init__(self, path, slurms=None):
        self.own = path
        self.slurms = slurms or {}

    @classmethod
    def of(cls, pid):
        """The step's group in which the kernel holds this process, or None."""
        text = read(f"/proc/{pid}/cgroup")
        # Of who is about to end the kernel shows "/" in each hierarchy of v1, and in cgroup2 where he was.
        fields = stat_fields(pid)
        return cls.named_in(text) if fields and not int(fields[6]) & PF_EXITING else None

    @classmethod
    def named_in(cls, text):
        """The same from what a process has read of its own /proc/self/cgroup."""
        own, slurms = None, {}
        for controller, path in paths_by_controller(text).items():
            found = next(filter(None, (pattern.match(path) for pattern in SLURMS)), None)
            if found:
                slurms[controller] = found.group(0)
            elif found := OURS.match(path):
                own = found.group(1)
        limited = [slurms.get(controller) for controller in expected_hierarchies()]
        return cls(own, slurms) if own or any(limited) else None

    @property
    def path(self):
        """What the job is told: ours, or Slurm's where nothing is ours."""
        return self.own or next(self.slurms[c] for c in ("", "cpu", "memory") if c in self.slurms)

    def is_on(self, node):
        """Whether it is that node's, where several share this host."""
        parts = f"/{node}/uid_", f"/{node}_slurmstepd.scope/", f"/slurm_{node}/uid_"
        paths = [self.own or "", *self.slurms.values()]
        return any(part in path for part in parts for path in paths)

    def path_in(self, controller):
        return self.slurms.get(controller, self.own)

    def __eq__(self, other):
        return isinstance(other, Group) and (self.own, self.slurms) == (other.own, other.slurms)

    def __hash__(self):
        return hash(self.path)

    def __repr__(self):
        return f"Group({self.own!r}, {self.slurms!r})"

    @property
    def name(self):
        return self.path.removesuffix("/user").rsplit("/", 1)[1]

    @property
    def parent(self):
        def above(path):
            return path.removesuffix("/user").rsplit("/", 1)[0]
        return Job(self.own and above(self.own), {c: above(p) for c, p in self.slurms.items()})

    def step(self, name):
        """A step of this job."""
        def below(controller, path):
            return f"{path}/{name}/user" if controller == "" else f"{path}/{name}"
        return Group(self.own and f"{self.own}/{name}",
                     {c: below(c, p) for c, p in self.slurms.items()})

    def task(self, number):
        """What holds one task of this step: Slurm's own directory, or ours, which is there only where tasks are limited."""
        def below(path):
            return f"{path}/task_{number}"
        return Group(self.own and below(self.own), {c: below(p) for c, p in self.slurms.items()})

    def directory(self, controller):
        """The directory in that controller's hierarchy, or None if there is none."""
        hierarchy = hierarchies().get(controller)
        if hierarchy is None:
            return None
        path = self.path_in(controller)
        directory = path and hierarchy.directory(path)
        return directory if directory and directory.is_dir() else None

    def directories(self):
        """Each directory of this path once, in every hierarchy that has it."""
        found = []
        for controller in hierarchies():
            directory = self.directory(controller)
            if directory and directory not in found:
                found.append(directory)
        return found

    def exists(self):
        return bool(self.directories())

    def remains(self):
        """Whether anything is there that should have gone with it. Where Slurm does not track
        processes by cgroup it may leave its own directories, with jobfence and without."""
        if slurm_tracks:
            return self.exists()
        return any(self.directory(c) for c in hierarchies() if self.own and c not in self.slurms)

    def limits_directory(self, controller):
        return self.directory("" if has_v2_controllers() else controller)

    def file(self, controller, v2_name, v1_name):
        """The text of a control file, each named as its version names it; "" where there is none."""
        name = v2_name if has_v2_controllers() else v1_name
        directory = self.limits_directory(controller)
        return read(directory / name) if directory and name else ""

    def cpu_limit(self):
        """CPUs as a number, or None when there is no limit."""
        directory = self.limits_directory("cpu")
        if directory is None:
            return None
        if has_v2_controllers():
            quota, period = (read(directory / "cpu.max") or "max 100000").split()
        else:
            quota = read(directory / "cpu.cfs_quota_us") or "-1"
            period = read(directory / "cpu.cfs_period_us") or "100000"
        return None if quota in ("max", "-1") else int(quota) / int(period)

    def cpu_period_us(self):
        directory = self.limits_directory("cpu")
        if has_v2_controllers():
            return int(read(directory / "cpu.max").split()[1])
        return int(read(directory / "cpu.cfs_period_us"))

    def cpu_burst_us(self):
        """What may be saved for later, in microseconds; None where the kernel has no burst."""
        text = self.file("cpu", "cpu.max.burst", "cpu.cfs_burst_us")
        return int(text) if text else None

    def cpu_weight(self):
        """As on v2: 100 is a new directory's, which are 1024 shares on v1."""
        text = self.file("cpu", "cpu.weight", "cpu.shares")
        if not text:
            return None
        return int(text) if has_v2_controllers() else (int(text) * 100 + 512) // 1024

    def is_idle(self):
        """Whether it runs only when nobody else wants to; None where the kernel has no such class."""
        text = self.file("cpu", "cpu.idle", "cpu.idle")
        return text == "1" if text else None

    def cores(self):
        """The CPUs of its cpuset, as a set; empty where it has not been given any of its own."""
        return cpu_list(self.file("cpuset", "cpuset.cpus", "cpuset.cpus"))

    def memory_limit(self):
        """Bytes, or None when there is no limit."""
        return self._bytes("memory.max", "memory.limit_in_bytes")

    def memory_high(self):
        """Bytes from which on it is slowed and has to give back, on v1 only where the whole node is short; None: no such limit."""
        return self._bytes("memory.high", "memory.soft_limit_in_bytes")

    def memory_low(self):
        """Bytes that others' want does not take, if it can be helped; 0 also where there is no protection, as on v1."""
        return self._bytes("memory.low", None) or 0

    def memory_min(self):
        """Bytes that are never taken; 0 also where there is no protection, as on v1."""
        return self._bytes("memory.min", None) or 0

    def memory_events(self):
        """What has happened at its limits (memory.events), as numbers; empty on v1."""
        return {name: int(count) for name, count in keyed(self.file("memory", "memory.events", None)).items()}

    def oom_kills(self):
        """How many of its processes were killed for want of memory."""
        return int(keyed(self.file("memory", "memory.events", "memory.oom_control")).get("oom_kill", 0))

    def kills_all(self):
        """Whether a want of memory kills all of its processes at once; None where the kernel knows no such thing (v1)."""
        text = self.file("memory", "memory.oom.group", None)
        return text == "1" if text else None

    def processes_limit(self):
        """Processes and threads, or None when there is no limit."""
        text = self.file("pids", "pids.max", "pids.max")
        return None if text in ("", "max") else int(text)

    def io_max(self):
        """By device ("8:0") what is limited of rbps, wbps, riops and wiops, each per second."""
        found = {}
        if has_v2_controllers():
            for line in self.file("io", "io.max", None).splitlines():
                device, *limits = line.split()
                pairs = (limit.split("=") for limit in limits)
                found[device] = {name: int(rate) for name, rate in pairs if rate != "max"}
            return found
        for name, what in V1_IO.items():
            for line in self.file("blkio", None, f"blkio.throttle.{what}_device").splitlines():
                device, rate = line.split()
                found.setdefault(device, {})[name] = int(rate)
        return found

    def written(self, device):
        """Bytes that have gone to this device ("8:0"), those of the page cache, too: cgroup2 alone knows whose they are."""
        for line in self.file("io", "io.stat", None).splitlines():
            found, *counts = line.split()
            if found == device:
                return int(dict(count.split("=") for count in counts).get("wbytes", 0))
        return 0

    def io_weight(self):
        """Of a device without one of its own, 100 being a new directory's; None where no scheduler or policy has weights."""
        for prefix in "", "bfq.":
            text = self.file("io", f"io.{prefix}weight", None) or self.file("blkio", None, f"blkio.{prefix}weight")
            if text:
                return int(text.splitlines()[0].removeprefix("default "))
        return None

    def huge_pages(self):
        """By size ("2MB", "1GB") the bytes that may be used; without those that are not limited."""
        # cgroup2 can have this one beside v1's others.
        is_v2 = "hugetlb" in controllers_of_v2()
        directory = self.directory("" if is_v2 else "hugetlb")
        suffix = "max" if is_v2 else "limit_in_bytes"
        found = {}
        for file in directory.glob(f"hugetlb.*.{suffix}") if directory else ():
            size, text = file.name.split(".")[1], read(file)
            if file.name.count(".") == 2 and text not in ("", "max") and int(text) < V1_UNLIMITED:
                found[size] = int(text)
        return found

    def swap_limit(self):
        """Bytes of swap, or None when there is no limit (or no account of swap)."""
        if has_v2_controllers():
            return self._bytes("memory.swap.max", None)
        both = self._bytes(None, "memory.memsw.limit_in_bytes")
        memory = self.memory_limit()
        return None if both is None or memory is None else both - memory

    def swap_is_accounted(self):
        directory = self.limits_directory("memory")
        name = "memory.swap.max" if has_v2_controllers() else "memory.memsw.limit_in_bytes"
        return directory is not None and (directory / name).exists()

    def _bytes(self, v2_name, v1_name):
        text = self.file("memory", v2_name, v1_name)
        if text in ("", "max") or int(text) >= V1_UNLIMITED:
            return None
        return int(text)

    def cpu_seconds(self):
        """CPU time used so far by everything in and below this group."""
        unified = self.directory("")
        if unified and (text := read(unified / "cpu.stat")):
            return int(keyed(text)["usage_usec"]) / 1e6
        cpuacct = self.directory("cpuacct")
        if cpuacct and (text := read(cpuacct / "cpuacct.usage")):
            return int(text) / 1e9
        # A host with a cpuacct hierarchy of its own and no cgroup2: ask the processes.
        return sum(process_seconds(pid) for pid in self.members(below=True))

    def memory_is_slurms(self):
        """Whether Slurm's own directory holds the limit of memory."""
        return ("" if has_v2_controllers() else "memory") in self.slurms

    def members(self, below=False):
        """The pids in this group, in any hierarchy. Slurm has directories of tasks below, and so may we."""
        pids = set()
        for top in self.directories():
            below = below or bool(self.slurms) or any(top.glob("task_*"))
            places = [top, *directories_below(top)] if below else [top]
            for place in places:
                pids.update(int(pid) for pid in read(place / "cgroup.procs").split())
        # On v1 Slurm's step daemon sits in the step's directory of some hierarchies.
        return {pid for pid in pids if not command_line(pid).startswith("slurmstepd")}


class Job(Group):
    """A job's group, or what is above it."""

    @property
    def user(self):
        """All of the user's jobs. Slurm has no such directory on v2, and on v1 it is the one above its jobs."""
        def above(path):
            return path.rsplit("/", 1)[0]
        return Group(self.own and above(self.own), {c: above(p) for c, p in self.slurms.items() if c != ""})

    def most(self):
        """CPUs that all in it can use together, Slurm's daemons included."""
        return super().cpu_limit()

    def cpu_limit(self):
        """CPUs that are left to the job's processes, or None when there is no limit."""
        cpus = super().cpu_limit()
        return cpus if cpus is None or "" not in self.slurms else cpus - HEADROOM_CPUS


def cpu_list(text):
    """The kernel's "0-2,5" as a set."""
    found = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def keyed(text):
    return dict(line.split(None, 1) for line in text.splitlines())


def stat_fields(pid):
    """/proc/PID/stat from the third field on: the second may hold blanks and brackets."""
    return read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def process_seconds(pid):
    fields = stat_fields(pid)
    if not fields:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_alive(pid):
    """A zombie counts as dead: it only waits for its parent to look."""
    fields = stat_fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def identity(pid):
    """Tells a process from a later one with the same pid; None if it has gone."""
    fields = stat_fields(pid)
    return (pid, fields[19]) if fields and is_alive(pid) else None


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(root):
    """Every process below `root`, however often it forked."""
    children = {}
    for pid in all_pids():
        fields = stat_fields(pid)
        if fields:
            children.setdefault(int(fields[1]), []).append(pid)
    found, todo = [], [root]
    while todo:
        for pid in children.get(todo.pop(), ()):
            found.append(pid)
            todo.append(pid)
    return found


def environment(pid):
    """The environment with which the process was started."""
    pairs = (item.partition(b"=") for item in environment_bytes(pid).split(b"\0") if item)
    return {k.decode(errors="replace"): v.decode(errors="replace") for k, _, v in pairs}


def environment_bytes(pid):
    return read_bytes(f"/proc/{pid}/environ")


def command_line(pid):
    return read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()


def descriptors(pid):
    """What the process has open, as the kernel names it."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(link))
    return found


def allowed_cpus(pids):
    """The CPUs on which at least one of these processes may run."""
    found = set()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            found |= os.sched_getaffinity(pid)
    return found


def idle_seconds(cpus):
    """Time for which these CPUs had nothing to do since the host started."""
    rows = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    wanted = {f"cpu{cpu}" for cpu in cpus}
    return sum(int(row[4]) + int(row[5]) for row in rows if row[0] in wanted) / os.sysconf("SC_CLK_TCK")


def swap_total():
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("SwapTotal:"):
            return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def punctual():
    """Who looks is not kept from it by those whom he looks at, nor by this machine's other work."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
