# SPDX-License-Identifier: GPL-2.0-or-later
"""A hook that writes down each event as pbs_python gives it to hooks: all that an event, a job and a vnode have.

tests/pbs/record.py turns it on in a real OpenPBS. What it writes is in recorded/, and the stand-in knows no more than that."""

import json
import os
import time

import pbs

PLACE = "@PLACE@"
OF_AN_EVENT = (
    "type", "hook_name", "hook_type", "requestor", "requestor_host", "user", "alarm", "debug", "fail_action", "freq", "progname",
    "argv", "env", "pid", "job", "job_list", "vnode_list", "vnode_list_fail",
)
METHODS = "in_ms_mom", "stdout_file", "stderr_file", "is_checkpointed"


def said(get):
    """What `get` finds: a text, a number, a list of texts, None, or which exception it raises."""
    try:
        value = get()
    except BaseException as error:  # each is an answer
        return {"raises": type(error).__name__}
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, dict) or hasattr(value, "keys"):
        return {"dict": sorted(str(key) for key in value.keys())}
    if isinstance(value, (list, tuple)):
        return [str(one) for one in value]
    return str(value)


def resources(which):
    return {str(name): said(lambda name=name: which[name]) for name in which.keys() if said(lambda name=name: which[name]) is not None}


def attributes(what):
    return {name: value for name in sorted(type(what).attributes) if (value := said(lambda name=name: getattr(what, name))) is not None}


def job_of(job):
    found = attributes(job)
    for name in "Resource_List", "resources_used":
        try:
            found[name] = {"resources": resources(getattr(job, name))}
        except BaseException as error:
            found[name] = {"raises": type(error).__name__}
    found["chunks"] = said(lambda: [f"{chunk.vnode_name} {sorted(resources(chunk.chunk_resources).items())}" for chunk in job.exec_vnode.chunks])
    return {"attributes": found, "methods": {name: said(lambda name=name: getattr(job, name)()) for name in METHODS}}


def vnode_of(vnode):
    return {**attributes(vnode), "resources_available": said(lambda: str(resources(vnode.resources_available)))}


def all_of(event, name, of_one):
    try:
        return {str(key): of_one(one) for key, one in getattr(event, name).items()}
    except BaseException as error:
        return {"raises": type(error).__name__}


def main():
    event = pbs.event()
    types = {getattr(pbs, name): name for name in dir(pbs) if name.startswith(("EXECJOB_", "EXECHOST_"))}
    found = {
        "event": types.get(event.type, str(event.type)),
        "fields": {name: said(lambda name=name: getattr(event, name)) for name in OF_AN_EVENT},
        "env": said(lambda: [f"{name}={event.env[name]}" for name in sorted(event.env)]),
        "vnode_list": all_of(event, "vnode_list", vnode_of),
        "job_list": all_of(event, "job_list", job_of),
        "process": {
            "argv": open("/proc/self/cmdline").read().split("\0")[:-1], "cwd": os.getcwd(), "euid": os.geteuid(),
            "environment": dict(sorted(os.environ.items())), "umask": open("/proc/self/status").read().split("Umask:\t")[1].split()[0],
        },
        "local_nodename": pbs.get_local_nodename(),
        "pbs_conf": dict(sorted(pbs.pbs_conf.items())),
        "module": sorted(name for name in dir(pbs) if not name.startswith(("_", "ATTR_"))),
    }
    try:
        found["job"] = job_of(event.job)
        found["attributes_of_jobs"] = sorted(type(event.job).attributes)
    except BaseException as error:
        found["job"] = {"raises": type(error).__name__}
    path = "%s/%d.%d" % (PLACE, time.time_ns(), os.getpid())
    with open(path + ".new", "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump(found, file)
    os.rename(path + ".new", path + ".json")


try:
    main()
except Exception as error:
    pbs.logmsg(pbs.LOG_ERROR, "recorder: %s: %s" % (type(error).__name__, error))
pbs.event().accept()
