# SPDX-License-Identifier: GPL-2.0-or-later
"""A stand-in for the module 'pbs' that pbs_python gives to a hook: the event comes from one file, the answer goes to another.

It has what the hook uses, with the types and the gaps of OpenPBS 23.06: a resource that is not set is None, one that the
server does not know is an AttributeError, an attribute that is not set is None, accept() and reject() end the program, and
what is written to anything but resources_used is refused. A launch of a job that pbs_python cannot decode has no environment, and
pbs_python crashes after the hook.

Events and jobs have no field that no event of a real MoM has had: see ../recorded.

It imports no more than pbs_python has itself, since the hook is timed with it.
"""

import atexit
import marshal
import os

LOG_ERROR, LOG_WARNING, LOG_DEBUG = 3, 4, 7
ND_OFFLINE = 1
NAMES = (
    "EXECHOST_STARTUP", "EXECHOST_PERIODIC", "EXECJOB_BEGIN", "EXECJOB_PROLOGUE", "EXECJOB_LAUNCH", "EXECJOB_ATTACH",
    "EXECJOB_RESIZE", "EXECJOB_ABORT", "EXECJOB_POSTSUSPEND", "EXECJOB_PRERESUME", "EXECJOB_PRETERM",
    "EXECJOB_EPILOGUE", "EXECJOB_END",
)
globals().update({name: 1 << bit for bit, name in enumerate(NAMES)})

with open(os.environ["REPLAY_EVENT"], "rb") as file:
    GIVEN = marshal.load(file)
RECORDED = GIVEN["recorded"]  # the names of what a real one has: of an event, and of a job what is ever set there
# What becomes of the event, as MoM reads it from pbs_python's output. Without an answer MoM takes it for accepted.
ANSWER = {"accepted": None, "message": "", "rerun": False, "delete": False, "hold": "", "not_before": None, "log": [], "used": {}, "ended": False,
          "vnodes": {},
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


KNOWN = {"ncpus", "mem", "vmem", "pvmem", "walltime", "cput", "cpupercent", "place", "vntype"}


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


# Methods of a job, which have other names.
OF_THE_TESTS = {"is_first", "stderr", "stdout"}


class Job:
    def __init__(self, given):
        self._given = given
        unknown = {name for name, value in given.items() if value is not None} - set(RECORDED["set"]) - OF_THE_TESTS
        if unknown:
            raise SystemError("no job of a real MoM has had a value of %s" % unknown)
        self.resources_used = Used(given["id"], given.get("resources_used", {}))
        self.Resource_List = Resources(given.get("Resource_List", {}))
        self.exec_vnode = ExecVnode(given.get("exec_vnode", ""))

    def __getattr__(self, name):
        if name not in RECORDED["attributes"]:
            raise AttributeError("no event of a real MoM has had a job with %s" % name)
        return self._given.get(name)

    def __setattr__(self, name, value):
        if name == "Hold_Types":
            ANSWER["hold"] = str(value)
        if name == "Execution_Time":
            ANSWER["not_before"] = value
        super().__setattr__(name, value)

    def in_ms_mom(self):
        return self._given.get("is_first", True)

    def stderr_file(self):
        return self._given.get("stderr")

    def stdout_file(self):
        return self._given.get("stdout")

    def rerun(self):
        ANSWER["rerun"] = True

    def delete(self):
        ANSWER["delete"] = True


class Vnode:
    def __init__(self, name, resources):
        self._name = name
        self.resources_available = Resources(resources)

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name in ("state", "comment"):
            ANSWER["vnodes"].setdefault(self._name, {})[name] = value


class Event:
    type = globals()[GIVEN["event"]]
    hook_name = "jobfence"
    requestor_host = GIVEN["full_name"]
    pid = GIVEN.get("pid")
    env = ANSWER["env"]
    vnode_list = {name: Vnode(name, resources) for name, resources in GIVEN.get("vnodes", {}).items()}
    job = Job(GIVEN["job"]) if "job" in GIVEN else None
    job_list = None if GIVEN.get("job_list", []) is None else {job["id"]: Job(job) for job in GIVEN.get("job_list", [])}

    def accept(self):
        self.answer(accepted=True)

    def reject(self, message=""):
        self.answer(accepted=False, message=message)

    def answer(self, **said):
        ANSWER.update(said)
        if GIVEN["event"] == "EXECJOB_LAUNCH" and self.env is None:
            write_answer()
            os.kill(os.getpid(), 11)
        raise SystemExit(0)


EVENT = Event()


def event():
    return EVENT


assert not set(vars(Event)) - set(RECORDED["fields"]) - {"accept", "reject", "answer", "__module__", "__dict__", "__weakref__", "__doc__"}


class Server:
    """Asked over the network: with a comment of None it does not answer."""

    def vnode(self, name):
        found = Vnode(name, {})
        found.__dict__["comment"] = GIVEN["comments"][name]
        return found


def server():
    if GIVEN.get("comments") is None:
        import time
        # By a child of the hook's, whose answer is another one's.
        with open(os.path.join(GIVEN["home"], "asked"), "ab") as asked:
            asked.write(b"x")
        time.sleep(300)
    return Server()


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
