# SPDX-License-Identifier: GPL-2.0-or-later
"""A stand-in for the module 'pbs' that pbs_python gives to a hook: the event comes from one file, the answer goes to another.

It has what the hook uses, with the types and the gaps of OpenPBS 23.06: a resource that is not set is None, one that the
server does not know is an AttributeError, an attribute that is not set is None, accept() and reject() end the program, and
what is written to anything but resources_used is refused.

It imports no more than pbs_python has itself, since the hook is timed with it.
"""

import atexit
import marshal
import os

LOG_ERROR, LOG_WARNING, LOG_DEBUG = 3, 4, 7
NAMES = (
    "EXECHOST_STARTUP", "EXECHOST_PERIODIC", "EXECJOB_BEGIN", "EXECJOB_PROLOGUE", "EXECJOB_LAUNCH", "EXECJOB_ATTACH",
    "EXECJOB_RESIZE", "EXECJOB_ABORT", "EXECJOB_POSTSUSPEND", "EXECJOB_PRERESUME", "EXECJOB_PRETERM",
    "EXECJOB_EPILOGUE", "EXECJOB_END",
)
globals().update({name: 1 << bit for bit, name in enumerate(NAMES)})

with open(os.environ["REPLAY_EVENT"], "rb") as file:
    GIVEN = marshal.load(file)
# What becomes of the event, as MoM reads it from pbs_python's output. Without an answer MoM takes it for accepted.
ANSWER = {"accepted": None, "message": "", "rerun": False, "hold": "", "log": [], "used": {}, "ended": False,
          "env": GIVEN.get("env", {})}
pbs_conf = {"PBS_HOME": GIVEN["home"]}
hook_config_filename = os.environ.get("PBS_HOOK_CONFIG_FILE")


def write_answer():
    with open(os.environ["REPLAY_ANSWER"], "wb") as file:
        marshal.dump(ANSWER, file)


atexit.register(write_answer)


class size(str):
    pass


class duration(str):
    def __new__(cls, value):
        return super().__new__(cls, value)


class hold_types(str):
    pass


KNOWN = {"ncpus", "mem", "vmem", "walltime", "cput", "cpupercent", "place", "vntype"}


class Resources(dict):
    def __missing__(self, name):
        if name not in KNOWN and name not in GIVEN["resources"]:
            raise AttributeError("'pbs_resource' object has no attribute '%s'" % name)
        return None

    __getattr__ = dict.__getitem__


class Used(Resources):
    def __init__(self, job, values):
        super().__init__(values)
        self.job = job

    def __setitem__(self, name, value):
        if name not in GIVEN["resources"]:
            raise ValueError("no such resource: %s" % name)
        super().__setitem__(name, value)
        ANSWER["used"].setdefault(self.job, {})[name] = str(value)


class Chunk:
    def __init__(self, text):
        self.vnode_name, *resources = text.strip("()").split(":")
        pairs = (resource.split("=", 1) for resource in resources)
        self.chunk_resources = Resources({k: int(v) if v.isdigit() else size(v) for k, v in pairs})


class ExecVnode(str):
    @property
    def chunks(self):
        return [Chunk(text) for text in self.split("+")]


class Job:
    def __init__(self, given):
        self._given = given
        self.resources_used = Used(given["id"], given.get("resources_used", {}))
        self.Resource_List = Resources(given.get("Resource_List", {}))
        self.exec_vnode = ExecVnode(given.get("exec_vnode", ""))

    def __getattr__(self, name):
        return self._given.get(name)

    def __setattr__(self, name, value):
        if name == "Hold_Types":
            ANSWER["hold"] = str(value)
        super().__setattr__(name, value)

    def in_ms_mom(self):
        return self._given.get("is_first", True)

    def stderr_file(self):
        return self._given.get("stderr")

    def stdout_file(self):
        return self._given.get("stdout")

    def rerun(self):
        ANSWER["rerun"] = True


class Vnode:
    def __init__(self, resources):
        self.resources_available = Resources(resources)


class Event:
    type = globals()[GIVEN["event"]]
    pid = GIVEN.get("pid")
    env = ANSWER["env"]
    vnode_list = {name: Vnode(resources) for name, resources in GIVEN.get("vnodes", {}).items()}
    job = Job(GIVEN["job"]) if "job" in GIVEN else None
    job_list = {job["id"]: Job(job) for job in GIVEN.get("job_list", [])}

    def accept(self):
        ANSWER["accepted"] = True
        raise SystemExit(0)

    def reject(self, message=""):
        ANSWER.update(accepted=False, message=message)
        raise SystemExit(0)


EVENT = Event()


def event():
    return EVENT


def get_local_nodename():
    return GIVEN["host"]


def logmsg(level, text):
    ANSWER["log"].append(text)


def logjobmsg(job, text):
    ANSWER["log"].append("%s;%s" % (job, text))


def failing(how):
    """What stands in the place of a function of the library: it fails in this way."""

    class Function:
        restype = None

        def __call__(self, *_):
            if how == "crash":
                os.kill(os.getpid(), 11)
            if how == "exception":
                raise RuntimeError("on purpose")
            return int(how)

    return Function()


def timed(function, name):
    """The same function. How long it takes is added up in the answer, in nanoseconds by its name."""

    class Function:
        def __setattr__(self, name, value):
            setattr(function, name, value)

        def __call__(self, *arguments):
            began = time.perf_counter_ns()
            try:
                return function(*arguments)
            finally:
                took = ANSWER.setdefault("library_ns", {})
                took[name] = took.get(name, 0) + time.perf_counter_ns() - began

    return Function()


if "fail" in GIVEN or GIVEN.get("timed"):
    import ctypes
    import time

    NAME, HOW = GIVEN.get("fail", (None, None))
    LOAD = ctypes.CDLL

    class Library:
        def __init__(self, path):
            self._so = LOAD(path)

        def __getattr__(self, name):
            if name == NAME:
                return failing(HOW)
            return timed(getattr(self._so, name), name) if GIVEN.get("timed") else getattr(self._so, name)

    ctypes.CDLL = Library
