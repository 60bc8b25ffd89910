# SPDX-License-Identifier: GPL-2.0-or-later
"""jobfence under OpenPBS and PBS Professional: what MoM starts for each event of a job, and of a node.

Each event is a process of its own. It reads the event, calls libjobfence.so, and writes back what the job used. What
lives on between two events is the record of the library alone. docs/install/pbs.md says how this is installed, and
jobfence.h what each call does.

A job is in its fence in three steps. None of them relies on the next one:
  begin     makes the fence, the extern step. MoM starts no job whose begin has crashed, or was refused.
  prologue  puts the starter, which becomes the job's first process, into that.
  launch    puts the starter of each task into the extern step, and then into a step of its own: 1 for the first process.
            MoM goes on with a job whose launch has crashed; its processes are then in the extern step.
A job that is checkpointed and ended keeps a fence without processes. MoM restarts it without any event, on the first host.
What a user has put into a job is in the event, and pbs_python leaves out what it cannot decode: bytes that are no UTF-8. It
then ends after the hook without an answer, and MoM goes on. So nothing on which a fence depends is read from there first.
Every minute the periodic event looks for processes of jobs that are in no fence: those of a task whose launch has
crashed on a host that has no prologue for it.
"""

import ctypes
import os
import pwd
import time

import pbs

UNFENCED, REFUSED, NO_FENCE = 2, -2, -3  # what functions of the library return
NO_TASK, ANY_USER = -1, 1
NOBODY = 65534
EACH_RUN = 0
ZERO_CPUS = UNKNOWN = 2**64 - 1
ARRAY_TASK, UTF8 = 1, 2
OF_A_SIGNAL = 256  # Exit_status is so much more than the number of the signal
# Exit_status where MoM has ended the job at a limit, and which one; and the signal with which MoM does it.
OVER_A_LIMIT, SIGTERM = {-29: "walltime", -28: "cput", -27: "mem", -26: "vmem", -25: "ncpus", -24: "ncpus"}, 15
AGAIN = 30  # seconds until the server tries a job again which this host could not fence just now; after 21 attempts it holds the job
HOLDER = b"scheduler:OpenPBS"
SESSION_PATIENCE = 2  # seconds in which pbs_attach brings in a session; MoM stands still meanwhile
ALONE_PATIENCE = 20  # seconds in which an event waits for another one
LOOK_PATIENCE, FETCH_PATIENCE = 0.1, 3  # seconds in which the environment of one process is read, and those of all
PROBE_PATIENCE = 2  # seconds after which what may pass has not passed; MoM stands still meanwhile
SERVER_PATIENCE = 5  # seconds in which the server says what the comments of vnodes are
LOCK = "jobfence.lock"
# MoM runs a hook in its mom_priv/hooks/tmp. Nothing else says that MoM was started with another directory (pbs_mom -d).
HOME = os.getcwd().rsplit("/mom_priv/", 1)[0]
OF_HOOKS = "PBS_CONF_FILE", "PBS_HOOK_CONFIG_FILE", "PBS_MOM_HOME"  # what MoM's scripts have not in their environment
JOBS_STEP, MEANWHILE, FIRST_STEP = "extern", "checkpoint", "1"
RUNNING, CHECKPOINTED = "42", "-12"  # a job's substate, and what its Exit_status is when a checkpoint has ended it
DEFAULTS = {
    "Library": "/usr/local/lib/slurm/libjobfence.so",
    "Config": "",
    "UsageResource": "",
    "DiagMessages": "no",
    "OfflineNode": "no",
    "AddressSpace": "mom",
    "ExclhostMemory": "granted",
}
# What is said of each key that has a few values only.
WORDS = {"DiagMessages": ("yes", "no"), "OfflineNode": ("yes", "no"), "AddressSpace": ("mom", "pvmem"), "ExclhostMemory": ("granted", "host")}


class Failed(Exception):
    """Something could not be done; the text says what, and what to do."""

    def __init__(self, text, code=REFUSED):
        super().__init__(text)
        self.code = code


class Fence(ctypes.Structure):
    """struct jobfence_fence"""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("job", ctypes.c_char_p),
        ("step", ctypes.c_char_p),
        ("run", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class Grant(ctypes.Structure):
    """struct jobfence_grant"""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("cpus", ctypes.c_uint64),
        ("memory", ctypes.c_uint64),
    ] + [
        (name, ctypes.c_char_p)
        for name in (
            "user", "partition", "qos", "account", "cpu_limit", "cpu_burst", "mem_high", "pids_max", "io_max",
            "project", "vnode_type",
        )
    ] + [("memory_swap", ctypes.c_uint64), ("gpus", ctypes.c_uint64), ("huge_pages", ctypes.c_char_p), ("job_name", ctypes.c_char_p)]


class Totals(ctypes.Structure):
    """struct jobfence_totals"""

    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, ctypes.c_uint64)
        for name in (
            "fences", "cpu_us", "throttled_us", "memory_peak", "memory_swap_peak", "oom_kills", "forks_refused",
            "read_bytes", "written_bytes",
        )
    ]


class Ended(ctypes.Structure):
    """struct jobfence_ended"""

    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, ctypes.c_uint64)
        for name in ("exit_status", "exit_signal", "wall_seconds", "time_limit_seconds", "nodes", "tasks", "flags")
    ]


LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class Library:
    """libjobfence.so, with this node's configuration."""

    def __init__(self, settings):
        path = settings["Library"]
        try:
            self.so = ctypes.CDLL(path)
            version = self.so.jobfence_abi_version
        except (OSError, AttributeError) as error:
            raise Failed("cannot load %s: %s. Library in the hook's configuration names it" % (path, error)) from None
        if version() < 1:
            raise Failed("%s is too old for this hook" % path)
        self.so.jobfence_last_error.restype = ctypes.c_char_p
        self.so.jobfence_free.restype = None
        self.config = settings["Config"].encode() or None
        self.log = LOG(log_line)
        self.so.jobfence_set_log(self.log, None)

    def call(self, name, *arguments):
        """The number that the function returns, and its text beside it; raises where it has failed."""
        code = getattr(self.so, "jobfence_" + name)(self.config, *arguments)
        said = self.so.jobfence_last_error().decode(errors="replace")
        if code < 0:
            raise Failed(said or "jobfence_%s has returned %d" % (name, code), code)
        return code, said

    def alone(self):
        """A file that only one event of this host has, until it closes the file: MoM starts the end of a job beside its
        epilogue. No user can open that file, and keep it."""
        import fcntl

        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = open(in_mom_priv(LOCK), "rb", opener=lambda path, _: os.open(path, flags, 0o600))
        deadline = time.monotonic() + ALONE_PATIENCE
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except BlockingIOError:
                if time.monotonic() > deadline:
                    file.close()
                    raise Failed("another event of this host does not end", None) from None
                time.sleep(0.01)

    def json(self, name, *arguments):
        """The JSON that a function makes, "" where there is no fence."""
        out = ctypes.c_void_p()
        try:
            self.call(name, *arguments, None, ctypes.byref(out))
            return ctypes.string_at(out.value).decode() if out.value else ""
        except Failed as error:
            if error.code != NO_FENCE:
                raise
            return ""
        finally:
            self.so.jobfence_free(out)


def fences_of(text):
    """The fences in the library's JSON. To import Python's takes longer than all else, so it is done only here."""
    import json

    return json.loads(text)["fences"] if text else []


def log_line(level, line, _):
    """The library's log: warnings and errors are MoM's, too."""
    if level <= 2:
        pbs.logmsg(pbs.LOG_WARNING if level == 2 else pbs.LOG_ERROR, "jobfence: " + line.decode(errors="replace"))


class Job:
    """A job on this host."""

    def __init__(self, library, job, settings):
        self.library, self.job, self.id, self.settings = library, job, str(job.id), settings
        try:
            user = pwd.getpwnam(str(job.euser))
        except KeyError:
            # The user database may not answer just now.
            raise Failed("this node does not know the user %s" % job.euser, None) from None
        self.user, self.uid, self.gid, self.home = user.pw_name, user.pw_uid, user.pw_gid, user.pw_dir
        self.run = int(job.run_version or job.run_count or 1)
        self.visible = None  # what CUDA_VISIBLE_DEVICES is to be, if that is ours to say

    def fence(self, step=None, run=None):
        """The argument that says which fence."""
        run = self.run if run is None else run
        return ctypes.byref(Fence(ctypes.sizeof(Fence), self.id.encode(), step and step.encode(), run, 0))

    def grant(self, event):
        """What PBS has granted on this host: the sum over the chunks of its vnodes."""
        vnodes = set()
        cpus, memory, virtual, gpus, pages = 0, 0, 0, 0, None
        for chunk in chunks_of(event, self.job):
            vnodes.add(chunk.vnode_name)
            resources = chunk.chunk_resources
            cpus += int(resources["ncpus"] or 0)
            memory += size_of(resources["mem"])
            virtual += size_of(resources["vmem"])
            # A site has these resources only if it has made them.
            gpus += int(getattr(resources, "ngpus", None) or 0)
            if hasattr(resources, "hpmem"):
                pages = (pages or 0) + size_of(resources["hpmem"])
        if not vnodes:
            raise Failed(
                "PBS has granted the job nothing on this host, which is %s for PBS: exec_vnode is %s, and its hosts are "
                "%s. PBS_MOM_NODE_NAME in pbs.conf must be the host's name there"
                % (event.requestor_host, self.job.exec_vnode, ", ".join(hosts_of(self.job)) or "not said")
            )
        given = Grant(size=ctypes.sizeof(Grant), user=self.user.encode())
        # Nobody else's job is on a host that is this job's alone, if its vnodes keep to that.
        is_alone = "exclhost" in str(self.job.Resource_List["place"]).split(":") and not ignores_exclhost()
        given.cpus = 0 if is_alone else cpus * 1000 or ZERO_CPUS
        # No fence is smaller than 1 MiB.
        given.memory, given.memory_swap = (size and max(size, 1 << 20) for size in (memory, virtual))
        if is_alone and not memory and not virtual and self.settings["ExclhostMemory"] == "host":
            given.memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # and not the default of the site
        given.gpus = gpus
        # Its user's text, which only the card and the usage log show: no letter of it stops the job.
        given.job_name = str(self.job.Job_Name or "").encode(errors="replace")
        page = pages is not None and default_page_size()
        if page:
            given.huge_pages = b"%dK:%dK" % (page, pages // 1024)
        for name, value in (
            ("partition", self.job.queue),
            ("account", self.job.Account_Name),
            ("project", self.job.project),
            ("vnode_type", types_of(event, vnodes)),
        ):
            setattr(given, name, None if value is None else str(value).encode())
        return ctypes.byref(given)

    def open(self, event, step):
        """Makes a fence, or limits it anew. Whether the job is to have one."""
        visible = ctypes.c_void_p()
        code, said = self.library.call(
            "open_gpus", self.fence(step), ctypes.c_uint32(self.uid), HOLDER, self.grant(event), None, ctypes.byref(visible)
        )
        if visible.value is not None:
            self.visible = ctypes.string_at(visible.value).decode()
            self.library.so.jobfence_free(visible)
        if code == UNFENCED:
            log(self.id, said)
        return code == 0

    def users_file(self, path):
        """The end of a file of the user's, who can have put anything there; O_NONBLOCK does not wait for a reader of a pipe."""
        groups = os.getgroups()
        os.setgroups(os.getgrouplist(self.user, self.gid))
        os.setegid(self.gid)
        os.seteuid(self.uid)
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            return open(os.open(path, flags), "wb", buffering=0)
        finally:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(groups)

    def attach(self, pid, step, flags=0):
        """Puts a process into a fence. Whether it is in."""
        code, said = self.library.call(
            "attach", self.fence(step), ctypes.c_int32(pid), ctypes.c_int64(NO_TASK), ctypes.c_uint32(flags)
        )
        if code == UNFENCED:
            log(self.id, said)
        return code == 0

    def totals(self, run=None):
        """What all its fences have used together; None where there is none."""
        totals = Totals(size=ctypes.sizeof(Totals))
        try:
            self.library.call("total", self.fence(run=run), ctypes.byref(totals))
        except Failed as error:
            if error.code != NO_FENCE:
                raise
            return None
        return totals

    def usage(self, run=None):
        """What each of its fences has used, as JSON."""
        return self.library.json("usage", self.fence(run=run))

    def card(self, event):
        """What it has used of what it was granted, as lines for its user; none unless the site wants a card."""
        status, text = -1 if self.job.Exit_status is None else int(self.job.Exit_status), ctypes.c_void_p()
        ended = Ended(size=ctypes.sizeof(Ended))
        ended.exit_status = status if 0 <= status < OF_A_SIGNAL else UNKNOWN
        ended.exit_signal = SIGTERM if status in OVER_A_LIMIT else max(0, status - OF_A_SIGNAL)
        ended.wall_seconds = int(float(self.job.resources_used["walltime"] or 0))
        ended.time_limit_seconds = int(float(self.job.Resource_List["walltime"] or 0))
        hosts = hosts_of(self.job) or [None]
        ended.nodes = len(set(hosts))
        ended.tasks = hosts.count(hosts[0])
        ended.flags = ARRAY_TASK * ("[" in self.id) + UTF8 * is_utf8(self.job.Variable_List)
        try:
            self.library.call("card", self.fence(), self.grant(event), ctypes.byref(ended), ctypes.byref(text))
            return ctypes.string_at(text.value).decode().splitlines() if text.value else []
        finally:
            self.library.so.jobfence_free(text)

    def close(self, run=None, step=None):
        """Ends what is left in its fences and removes them; what each has used, as JSON."""
        return self.library.json("close", self.fence(step, run))

    def empty(self, event):
        """Ends what is left in its fences. One fence stays, and with it what the job has used."""
        with self.library.alone():
            if self.totals() and self.open(event, MEANWHILE):
                for fence in fences_of(self.usage()):
                    if fence["step"] != MEANWHILE:
                        self.close(step=fence["step"])
                self.open(event, JOBS_STEP)
                self.close(step=MEANWHILE)

    def switch(self, name):
        """Freezes all its processes, or thaws them. Without a fence there is nothing to do."""
        try:
            self.library.call(name, self.fence())
        except Failed as error:
            if error.code != NO_FENCE:
                raise

    def report(self, totals, settings, text):
        """Writes back to PBS what they have used; `text` makes their JSON."""
        used = self.job.resources_used
        if totals.cpu_us != UNKNOWN:
            used["cput"] = pbs.duration(totals.cpu_us // 1000000)
            # MoM counts it on the first host alone, and adds up what each host says.
            walltime = float(used["walltime"] or 0) if self.job.in_ms_mom() else time.time() - int(self.job.stime or time.time())
            if walltime >= 1:
                used["cpupercent"] = int(totals.cpu_us / 10000 / walltime)
        for name, peak in (("mem", totals.memory_peak), ("vmem", totals.memory_swap_peak)):
            if peak != UNKNOWN:
                used[name] = pbs.size("%dkb" % (peak // 1024))
        if settings["UsageResource"]:
            used[settings["UsageResource"]] = '{"%s":%s}' % (pbs.get_local_nodename(), text())


def hosts_of(job):
    """The host of each chunk of a job, by the name that its MoM has for PBS: NAME:PORT/INDEX of exec_host2. MoM has no exec_host."""
    return [entry.split("/")[0].rsplit(":", 1)[0].lower() for entry in str(job.exec_host2 or "").split("+") if entry]


def chunks_of(event, job):
    """The parts of exec_vnode that are this host's, each with a vnode. Parentheses are around a chunk, which has one host."""
    number, depth, of_chunk = -1, 0, []
    for part in str(job.exec_vnode).split("+"):
        number += depth == 0
        depth += part.count("(") - part.count(")")
        of_chunk.append(number)
    hosts, parts = hosts_of(job), list(job.exec_vnode.chunks)
    if len(hosts) == number + 1:
        here = str(event.requestor_host).lower()
        found = [part for part, index in zip(parts, of_chunk) if hosts[index] == here]
        if found:
            return found
    host = pbs.get_local_nodename()
    return [part for part in parts if part.vnode_name == host or part.vnode_name.startswith(host + "[")]


def types_of(event, vnodes):
    """The types of these vnodes: as MoM has them, or as the file mom_priv/vntype says of the whole host. None: nobody says."""
    types = []
    for name in vnodes:
        try:
            types.append(event.vnode_list[name].resources_available["vntype"])
        except (AttributeError, KeyError, TypeError):
            pass  # MoM has said no resources of the vnode
    try:
        with open(in_mom_priv("vntype"), encoding="utf-8") as file:
            types.append(file.readline().strip())
    except (OSError, ValueError):
        pass
    said = {str(one) for one in types if one is not None}
    return ",".join(sorted(said - {""})) if said else None


def ignores_exclhost():
    """Whether PBS places other jobs beside one that has the host alone: sharing=ignore_excl, in the files by which MoM
    defines its vnodes (pbs_mom -s insert)."""
    directory = in_mom_priv("config.d")
    try:
        for name in os.listdir(directory):
            with open(os.path.join(directory, name), "rb") as file:
                if b"ignore_excl" in file.read():
                    return True
    except FileNotFoundError:
        return False
    except OSError:
        return True  # nobody says that they do not
    return False


def in_mom_priv(name):
    """The path of something of MoM's own."""
    return os.path.join(HOME, "mom_priv", name)


def is_utf8(variables):
    """Whether a job's user can read more than ASCII, by the job's own locale, or else by that of qsub."""
    for name in ("LC_ALL", "LC_CTYPE", "LANG", "PBS_O_LANG"):
        value = str((variables or {}).get(name) or "")
        if value:
            return "utf8" in value.lower().replace("-", "")
    return False


def size_of(value):
    """Bytes of a size as PBS writes it, 300mb; None is nothing."""
    text = str(value or "0").lower()
    digits = text.rstrip("kmgtpbw")
    factor = 8 if text.endswith("w") else 1
    unit = text[len(digits):].rstrip("bw")
    return int(digits) * factor * 1024 ** " kmgtp".index(unit or " ")


def default_page_size():
    """KiB of the kernel's huge pages where nobody says which; None: it has none."""
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("Hugepagesize:"):
                return int(line.split()[1])
    return None


def log(job, text):
    """Into MoM's log, at the job."""
    for line in text.splitlines():
        pbs.logjobmsg(job, "jobfence: " + line)


def settings_of_the_hook():
    """The hook's configuration, lines of the form Key=Value; what it does not say is as shipped. And the first mistake in it, or None."""
    settings, path, problem = dict(DEFAULTS), pbs.hook_config_filename, None
    if not path:
        return settings, None
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, ValueError) as error:
        return settings, "the configuration of the hook cannot be read: %s: %s" % (path, error)
    for number, line in enumerate(lines, 1):
        line = line.strip()
        key, equals, value = (part.strip() for part in line.partition("="))
        if equals and key in DEFAULTS and not line.startswith("#"):
            settings[key] = value
        elif line and not line.startswith("#"):
            problem = problem or "%s:%d: found %s, expected one of %s, and its value behind '='" % (
                path, number, line, ", ".join(DEFAULTS))
    for key, words in WORDS.items():
        if settings[key] not in words:
            problem = problem or "%s: %s: found %s, expected %s" % (path, key, settings[key], " or ".join(words))
    return settings, problem


# What is done at each event. What fails there fails the job, or is logged: see EVENTS.


def begin(event, job, settings):
    """Before any process of the job."""
    if job.totals(EACH_RUN):
        for other in {fence["run"] for fence in fences_of(job.usage(EACH_RUN))} - {job.run}:
            log(job.id, "run %d of the job has left a fence, which is closed" % other)
            try:
                job.close(other)
            except Failed as error:  # what does not die stays in the fence of that run
                log(job.id, str(error))
    job.open(event, JOBS_STEP)


def prologue(event, job, settings):
    """On the first host the parent becomes the job; MoM goes on with it whatever becomes of its launch."""
    if not job.job.in_ms_mom():
        return
    if job.open(event, JOBS_STEP):
        job.attach(os.getppid(), JOBS_STEP, ANY_USER)
    status = site_script(job, "prologue", pbs.EXECJOB_PROLOGUE, [], {})
    if status:
        if status == 1:  # as MoM: the job is deleted, and not started again
            event.job.delete()
        raise Failed("the prologue of the site has ended with %d" % status, None)


def environment_of(event):
    """The environment of a task; None where pbs_python could not decode it."""
    try:
        return event.env
    except Exception:  # pylint: disable=broad-except
        return None


def step_of(event):
    """The name of a task's step."""
    try:
        return str(int(environment_of(event)["PBS_TASKNUM"], 16))
    except (KeyError, ValueError, TypeError):
        return JOBS_STEP if environment_of(event) is None else FIRST_STEP


def launch(event, job, settings):
    """The parent becomes a task of the job."""
    try:
        job.attach(os.getppid(), JOBS_STEP, ANY_USER)
    except Failed as error:
        if error.code != NO_FENCE:
            raise
        # The job began when this hook was off.
        if job.open(event, JOBS_STEP):
            job.attach(os.getppid(), JOBS_STEP, ANY_USER)
    step = step_of(event)
    if job.open(event, step):
        job.attach(os.getppid(), step, ANY_USER)
        if settings["AddressSpace"] == "pvmem":
            limit_address_space(job)
    if job.visible is not None and environment_of(event) is not None:
        # A plain comma would begin another variable.
        event.env["CUDA_VISIBLE_DEVICES"] = job.visible.replace(",", "\\,")
        event.env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"


def limit_address_space(job):
    """MoM has set RLIMIT_AS to the less of vmem and pvmem, before this event. The fence limits vmem, as memory and swap together. MoM's
    limit stays if the fence limits no memory."""
    import resource

    if not any(fence["memory_limit_bytes"] for fence in fences_of(job.usage())):
        return
    size = size_of(job.job.Resource_List["pvmem"]) or resource.RLIM_INFINITY
    try:
        resource.prlimit(os.getppid(), resource.RLIMIT_AS, (size, size))
    except (OSError, ValueError) as error:
        said = "unlimited" if size == resource.RLIM_INFINITY else "%d bytes" % size
        raise Failed("cannot set RLIMIT_AS of the job's process to %s: %s" % (said, error), None) from None


def attach(event, job, settings):
    """A process that runs already, with its session."""
    session = os.getsid(event.pid)
    # Not of anybody: the user chooses the number, and MoM looks at whose it is only afterwards.
    try:
        is_in = job.attach(event.pid, JOBS_STEP)
    except Failed as error:
        if error.code != NO_FENCE:
            raise
        # The job began when this hook was off.
        is_in = job.open(event, JOBS_STEP) and job.attach(event.pid, JOBS_STEP)
    if not is_in:
        return
    deadline, is_more, problem = time.monotonic() + SESSION_PATIENCE, True, None
    places = places_of([job])
    while is_more:
        # Once more where processes were put in: they may have started others meanwhile.
        is_more = False
        for pid, uid in processes():
            if time.monotonic() > deadline:
                log(job.id, "not all processes of session %d are in the job's fence: %s" % (session, problem or "there are too many"))
                return
            try:
                if uid == job.uid and os.getsid(pid) == session and not is_fenced(pid, uid, places):
                    is_more = job.attach(pid, JOBS_STEP) or is_more
            except (OSError, Failed) as error:
                problem = error  # it has ended, or stays outside


def resize(event, job, settings):
    """The job has given hosts back."""
    try:
        job.library.call("limit", job.fence(), job.grant(event))
    except Failed as error:
        if error.code != NO_FENCE:
            raise


def postsuspend(event, job, settings):
    """MoM has stopped the job's sessions; a process with a session of its own goes on until now."""
    job.switch("freeze")


def preresume(event, job, settings):
    """MoM will let the job's sessions go on."""
    job.switch("thaw")


def epilogue(event, job, settings):
    """The first process has ended. Others may not have."""
    totals, failed, card, is_checkpointed = job.totals(), None, [], str(job.job.Exit_status) == CHECKPOINTED
    # The end of the job may come beside this, and close the fence first. On another host MoM stands still meanwhile.
    text = job.usage() if totals and (is_checkpointed or job.job.in_ms_mom()) else ""
    try:
        if is_checkpointed:
            job.empty(event)
        else:
            if totals and job.job.in_ms_mom():
                card = card_of(event, job)
            text = job.close() or text
    except Failed as error:
        failed, text = error, text or (job.usage() if totals else "")
    if totals:
        job.report(totals, settings, lambda: text)
        stopped = {totals.oom_kills, totals.forks_refused} - {0, UNKNOWN}
        sentences = diagnose(job, text, settings) if stopped else []
        tell(job, ["jobfence: " + sentence for sentence in sentences] + card)
    try:
        site_epilogue(job)
    except (Failed, OSError) as error:
        failed = failed or Failed("the epilogue of the site has not run: %s" % error, None)
    if failed:
        raise failed


def site_epilogue(job):
    """The site's own epilogue, with what MoM gives it."""
    if not job.job.in_ms_mom() or not os.path.exists(in_mom_priv("epilogue")):
        return
    import contextlib

    of, files = job.job, {}
    arguments = [
        of.Job_Name, of.session_id or 0, listed(of.Resource_List), listed(of.resources_used), of.queue, of.Account_Name or "null",
        -1 if of.Exit_status is None else int(of.Exit_status),
    ]
    with contextlib.ExitStack() as stack:
        if not of.interactive:
            joined = str(of.Join_Path or "")
            out, error = of.stdout_file(), of.stderr_file()
            out, error = (error, error) if joined.startswith("eo") else (out, out) if joined.startswith("oe") else (out, error)
            for name, path in ("stdout", out), ("stderr", error):
                try:
                    files[name] = stack.enter_context(job.users_file(path))
                except OSError as problem:
                    log(job.id, "the epilogue of the site has no %s: %s" % (name, problem))
        status = site_script(job, "epilogue", pbs.EXECJOB_EPILOGUE, arguments, files)
    if status:
        log(job.id, "the epilogue of the site has ended with %d" % status)


def listed(resources):
    """Resources as MoM writes them for the scripts of a site."""
    return ",".join("%s=%s" % (name, resources[name]) for name in sorted(resources.keys()) if resources[name] is not None)


def site_script(job, name, event, arguments, files):
    """Runs mom_priv/prologue or epilogue, as MoM does where no hook has the event; with another one than this it does not. What it has ended
    with; 0 where there is none."""
    path = in_mom_priv(name)
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return 0
    if has_other_hook(event):
        return 0
    import signal
    import stat
    import subprocess

    mode = found.st_mode
    if found.st_uid or not stat.S_ISREG(mode) or mode & 0o500 != 0o500 or mode & 0o022:
        raise Failed("%s must be a file of root's that only root can change, and that can be executed" % path, None)
    environment = {key: value for key, value in os.environ.items() if key not in OF_HOOKS}
    environment["PBS_JOBDIR"] = job.home
    # In a session of its own, of which nothing is left; and outside of the fence, as this process is.
    process = subprocess.Popen(
        [path, job.id, str(job.job.euser), str(job.job.egroup), *(str(one) for one in arguments)], stdin=subprocess.DEVNULL,
        **({"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **files} if event == pbs.EXECJOB_EPILOGUE else {}),
        cwd=in_mom_priv("") if event == pbs.EXECJOB_PROLOGUE else job.home, env=environment, start_new_session=True,
    )
    try:
        return process.wait(prologalarm())
    except subprocess.TimeoutExpired:
        log(job.id, "the %s of the site is ended, since it took longer than $prologalarm" % name)
        return -4
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def has_other_hook(event):
    """Whether another hook of this MoM has this event."""
    name = {pbs.EXECJOB_PROLOGUE: "execjob_prologue", pbs.EXECJOB_EPILOGUE: "execjob_epilogue"}[event]
    for file in os.listdir(in_mom_priv("hooks")):
        hook, kind = os.path.splitext(file)
        if kind != ".HK" or hook == pbs.event().hook_name or not os.path.exists(in_mom_priv("hooks/%s.PY" % hook)):
            continue
        with open(in_mom_priv("hooks/" + file), encoding="utf-8", errors="replace") as lines:
            keys = dict(line.strip().split("=", 1) for line in lines if "=" in line)
        if keys.get("enabled", "true").lower() == "true" and name in keys.get("event", "").split(","):
            return True
    return False


def prologalarm():
    """The seconds that MoM leaves to a script of the site."""
    seconds = 30
    try:
        with open(in_mom_priv("config"), encoding="utf-8", errors="replace") as file:
            for words in map(str.split, file):
                if len(words) == 2 and words[0] == "$prologalarm":
                    seconds = int(words[1])
    except (OSError, ValueError):
        pass  # as MoM, who goes on without
    return seconds


def end(event, job, settings):
    """The last event of a job, also of one that never began; and the first one after a checkpoint that is to end it."""
    state = str(job.job.substate), str(job.job.Exit_status)
    if event.type == pbs.EXECJOB_END and job.job.in_ms_mom() and state == (RUNNING, CHECKPOINTED):
        job.empty(event)
    else:
        job.close()


def diagnose(job, text, settings):
    """At which limits the job was stopped, for its user; the administrator finds that, too."""
    sentences = [sentence for fence in fences_of(text) for sentence in fence["sentences"]]
    log(job.id, "\n".join(sentences))
    if sentences and settings["DiagMessages"] == "yes":
        import json

        job.job.resources_used["diag_messages"] = json.dumps({pbs.get_local_nodename(): " ".join(sentences)})
    return sentences


def card_of(event, job):
    """The lines of the job's card. A job does not fail for want of it."""
    try:
        lines = job.card(event)
        limit = OVER_A_LIMIT.get(job.job.Exit_status)
        return lines + ["  PBS has ended the job at its limit of %s." % limit] if lines and limit else lines
    except Exception as error:  # pylint: disable=broad-except
        log(job.id, "there is no card of the job: %s: %s" % (type(error).__name__, error))
        return []


def tell(job, lines):
    """Writes these lines for the job's user at the end of the job's output."""
    joined = str(job.job.Join_Path or "").startswith("oe")
    path = lines and job.job.in_ms_mom() and (job.job.stdout_file() if joined else job.job.stderr_file())
    if not path:
        return
    try:
        with job.users_file(path) as file:
            file.write("".join(line + "\n" for line in lines).encode())
    except OSError as error:
        pbs.logjobmsg(job.id, "jobfence: the sentence for the user cannot be written: %s" % error)


def periodic(event, library, settings):
    """What dead jobs have left; what jobs use; what is in no fence."""
    try:
        library.call("reap", ctypes.c_uint32(5000), None)
    except Failed as error:
        pbs.logmsg(pbs.LOG_ERROR, "jobfence: %s" % error)
    fenced = {}
    for each in spooled(library) if event.job_list is None else event.job_list.values():
        try:
            job = Job(library, each, settings)
            totals = job.totals()
            if totals:
                fenced.setdefault(job.uid, []).append(job)
                job.report(totals, settings, job.usage)
        except Exception as error:  # pylint: disable=broad-except
            log(str(each.id), "%s: %s" % (type(error).__name__, error))
    if fenced:
        fetch(fenced)


class Spooled:
    """A job of which only its fences say something."""

    exec_vnode = session_id = run_count = stime = None

    def in_ms_mom(self):
        """Nobody says, and nobody hears what it has used."""
        return True

    def __init__(self, fence):
        self.id, self.run_version, self.euser = fence["job"], fence["run"], pwd.getpwuid(fence["uid"]).pw_name
        self.resources_used = {"walltime": 0}


def spooled(library):
    """The jobs that MoM has in its spool. pbs_python gives the event no job where it cannot decode one of them, and hears nothing of what
    jobs use then."""
    for name in os.listdir(in_mom_priv("jobs")):
        job, kind = os.path.splitext(name)
        if kind == ".JB":
            which = Fence(ctypes.sizeof(Fence), os.fsencode(job), None, EACH_RUN, 0)
            fences = fences_of(library.json("usage", ctypes.byref(which)))
            if fences:
                yield Spooled(max(fences, key=lambda fence: fence["run"]))


def fetch(fenced):
    """Puts processes of jobs that are in no fence into theirs: those of a task whose launch has crashed. Each process is
    looked at once; `fenced` are the jobs of each user."""
    deadline = time.monotonic() + FETCH_PATIENCE
    theirs = [(pid, uid) for pid, uid in processes() if uid in fenced]
    # Another one is the first each time: where they take too long, the same ones are not the last for ever.
    first = int(time.time()) % max(len(theirs), 1)
    places = places_of(job for jobs in fenced.values() for job in jobs)
    for pid, uid in theirs[first:] + theirs[:first]:
        try:
            if is_fenced(pid, uid, places):
                continue
            session, of = os.getsid(pid), None
            if not any(session == int(job.job.session_id or -1) for job in fenced[uid]):
                if time.monotonic() > deadline:
                    pbs.logmsg(pbs.LOG_WARNING, "jobfence: there was no time left to look at every process")
                    break
                of = job_of(pid)
            for job in fenced[uid]:
                if of == job.id or session == int(job.job.session_id or -1):
                    if job.attach(pid, JOBS_STEP):
                        log(job.id, "process %d ran outside of the job's fence, and was put in" % pid)
                    break
        except (OSError, Failed, ValueError):
            pass  # it has ended


def job_of(pid):
    """PBS_JOBID of a process's environment, which its user can have written; None: it has none, or none that can be read.

    The kernel makes the reader wait while the process maps memory, for ever where a file system of the user's does not
    answer. So a child reads, which can be left waiting."""
    def look():
        with open("/proc/%d/environ" % pid, "rb") as file:
            for variable in file.read().split(b"\0"):
                if variable.startswith(b"PBS_JOBID=") and len(variable) < 4096:
                    return variable[len(b"PBS_JOBID="):]
        return b""

    return said_by_a_child(look, LOOK_PATIENCE).decode(errors="replace") or None


def said_by_a_child(look, patience):
    """What `look` returns, at most 4096 bytes; none if it fails, or takes longer."""
    import select
    import signal

    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, look()[:4096])
        finally:
            os._exit(0)
    os.close(writer)
    try:
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        said = os.read(reader, 4096) if poll.poll(patience * 1000) else b""
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + LOOK_PATIENCE
    while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.001)
    return said


def places_of(jobs):
    """Where all fences are, as /proc/PID/cgroup names it: CgroupBase, with which the path of each fence begins, below
    what is mounted of each hierarchy."""
    base = ""
    for job in jobs:
        try:
            for fence in fences_of(job.usage()):
                base = (fence["path"] or "").rpartition("/uid_%d/job_" % job.uid)[0] or base
        except Failed:
            pass  # another one says it, too
        if base:
            break
    else:
        return ()  # then each process is put in, also one that is in
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = [line.split() for line in file]
    # Of proc_pid_mountinfo(5): the fourth field is the root of the mount, and the type follows a lone hyphen.
    roots = {mount[3] for mount in mounts if mount[mount.index("-") + 1] in ("cgroup", "cgroup2")}
    return ["%s/%s" % (root.rstrip("/"), base.strip("/")) for root in roots]


def is_fenced(pid, uid, places):
    """Whether a process is in a fence of its user's. A user can have made a directory of such a name elsewhere."""
    begins = tuple("%s/uid_%d/job_" % (place, uid) for place in places)
    with open("/proc/%d/cgroup" % pid, encoding="utf-8", errors="surrogateescape") as file:
        return any(line.split(":", 2)[2].startswith(begins) for line in file)


def processes():
    """Each process, and whose it is."""
    for name in os.listdir("/proc"):
        try:
            if name.isdigit():
                yield int(name), os.stat("/proc/" + name).st_uid
        except OSError:
            pass  # it has ended


def startup(event, library, settings):
    """MoM begins. Jobs that it still has are in its spool, and keep their fences."""
    library.call("reap", ctypes.c_uint32(5000), None)


# A host that can fence no job, whatever the job asks for: see OfflineNode.


def fault_of_the_host(library):
    """Why no job can be fenced here; None: this job alone is to blame. A fence is made for no job, which has no section of the configuration
    but those of the host, and asks for little. So nothing that a user writes is in it."""
    fence = ctypes.byref(Fence(ctypes.sizeof(Fence), b"jobfence.probe.%d" % os.getpid(), None, 1, 0))
    grant = Grant(size=ctypes.sizeof(Grant), cpus=1000, memory=64 << 20, user=b"nobody")
    grant.partition = grant.qos = grant.account = grant.project = grant.vnode_type = b""
    deadline, fault = time.monotonic() + PROBE_PATIENCE, None
    while True:
        try:
            code, said = library.call("open", fence, ctypes.c_uint32(NOBODY), b"pid:%d" % os.getpid(), ctypes.byref(grant), None)
            # With OnError=warn in the general part, the probe goes on without a fence.
            fault = Failed(said, None) if code == UNFENCED else None
        except Failed as error:
            fault = error
        try:
            library.call("close", fence, None, None)
        except Failed as error:
            fault = fault or error
        if fault is None or fault.code == REFUSED or time.monotonic() > deadline:
            return fault and str(fault)
        time.sleep(0.2)  # what the kernel refuses may pass by itself


def is_set_offline(event, fault):
    """Has PBS send no more jobs to the vnodes of the job on this host. Whether it does. PBS does not say who has set a node offline, so nobody
    but the administrator brings it back."""
    ours = "jobfence: no job can be fenced here: %s. When that is mended: pbsnodes -r NODE -C ''" % " ".join(fault.split())
    deadline = time.monotonic() + SERVER_PATIENCE
    try:
        # All are looked up before the first is changed.
        vnodes = [(name, event.vnode_list[name]) for name in sorted({chunk.vnode_name for chunk in chunks_of(event, event.job)})]
        for name, vnode in vnodes:
            # What the administrator has written stays, also if the server does not say it.
            left = deadline - time.monotonic()
            ask = lambda name=name: b"=" + str(pbs.server().vnode(name).comment or "").encode()  # noqa: E731
            said = said_by_a_child(ask, left) if left > 0 else b""
            theirs = said[1:].decode(errors="replace").split("jobfence: ")[0].strip()
            vnode.state = pbs.ND_OFFLINE
            if said:
                vnode.comment = " ".join(filter(None, (theirs, ours)))
            pbs.logmsg(pbs.LOG_ERROR, "jobfence: %s is set offline: %s" % (name, fault))
        return True
    except Exception as error:  # pylint: disable=broad-except
        pbs.logmsg(pbs.LOG_ERROR, "jobfence: the node cannot be set offline: %s: %s" % (type(error).__name__, error))
        return False


# For each event what is done, and what becomes of it if that fails: the job is put back into its queue (and held there,
# if it would be refused again), the request is refused, or it is logged and MoM goes on.
RERUN, REFUSE, GO_ON = "rerun", "refuse", "go on"
OF_JOBS = {
    pbs.EXECJOB_BEGIN: (begin, RERUN),
    pbs.EXECJOB_PROLOGUE: (prologue, RERUN),
    pbs.EXECJOB_LAUNCH: (launch, RERUN),
    pbs.EXECJOB_ATTACH: (attach, REFUSE),
    pbs.EXECJOB_RESIZE: (resize, GO_ON),
    pbs.EXECJOB_POSTSUSPEND: (postsuspend, GO_ON),
    pbs.EXECJOB_PRERESUME: (preresume, REFUSE),
    pbs.EXECJOB_PRETERM: (preresume, GO_ON),
    pbs.EXECJOB_EPILOGUE: (epilogue, GO_ON),
    pbs.EXECJOB_END: (end, GO_ON),
    pbs.EXECJOB_ABORT: (end, GO_ON),
}
OF_NODES = {pbs.EXECHOST_STARTUP: startup, pbs.EXECHOST_PERIODIC: periodic}


def main():
    """The event. An exception that is not caught would set the node offline, so each one is."""
    event, settings, mistake, library = pbs.event(), {}, None, None
    of_job, or_else = OF_JOBS.get(event.type, (None, GO_ON))
    if of_job is launch and step_of(event) != FIRST_STEP:
        or_else = REFUSE  # the task is refused, and the job goes on
    try:
        os.environ["PBS_MOM_HOME"] = HOME  # of which MoM the library is asked
        settings, mistake = settings_of_the_hook()
        if mistake and or_else != GO_ON:
            raise Failed(mistake)
        if mistake:  # what is there already is told, and ended
            pbs.logmsg(pbs.LOG_ERROR, "jobfence: %s" % mistake)
        library = Library(settings)
        if of_job:
            of_job(event, Job(library, event.job, settings), settings)
        elif event.type in OF_NODES:
            OF_NODES[event.type](event, library, settings)
        problem, is_lasting = None, False
    except Exception as error:  # pylint: disable=broad-except
        is_lasting = isinstance(error, Failed) and error.code == REFUSED
        problem = str(error) if isinstance(error, Failed) else "%s: %s" % (type(error).__name__, error)
    if problem is not None:
        log(str(event.job.id), problem) if of_job else pbs.logmsg(pbs.LOG_ERROR, "jobfence: %s" % problem)
    goes_elsewhere = False
    # The hook's own file is the same on all hosts, so a mistake there takes none of them offline.
    if problem is not None and not mistake and of_job is begin and settings.get("OfflineNode") == "yes":
        fault = fault_of_the_host(library) if library else problem
        goes_elsewhere = bool(fault) and is_set_offline(event, fault)
    if problem is None or or_else == GO_ON:
        event.accept()
    if of_job is launch and environment_of(event) is None:
        import signal

        # MoM hears no answer, and would go on.
        log(str(event.job.id), "a process of the job is ended")
        os.kill(os.getppid(), signal.SIGKILL)
    if or_else == RERUN:
        # PBS would start it 20 times within seconds, and then hold it.
        if event.type == pbs.EXECJOB_BEGIN and not goes_elsewhere:
            if is_lasting:
                event.job.Hold_Types = pbs.hold_types("s")
            else:
                event.job.Execution_Time = int(time.time()) + AGAIN
        event.job.rerun()
    event.reject("jobfence: %s" % problem)


main()
