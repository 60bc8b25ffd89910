# SPDX-License-Identifier: GPL-2.0-or-later
"""Opens a PAM session as sshd does: pam_session.py DIRECTORY SERVICE USER FLAGS [NAME=VALUE...].

DIRECTORY stands for /etc/pam.d, the assignments for what a user may put into PAM's environment. Says what PAM answered
and told the user, then waits for a line and closes the session. Fails where a session that was granted leaves anything.
"""

import ctypes
import json
import os
import sys

PAM = ctypes.CDLL("libpam.so.0")
LIBC = ctypes.CDLL(None)
LIBC.calloc.restype = ctypes.c_void_p


class Message(ctypes.Structure):
    _fields_ = [("style", ctypes.c_int), ("text", ctypes.c_char_p)]


class Response(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char_p), ("code", ctypes.c_int)]


Talk = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.POINTER(Message)),
    ctypes.POINTER(ctypes.POINTER(Response)), ctypes.c_void_p)  # fmt: skip


class Conversation(ctypes.Structure):
    _fields_ = [("talk", Talk), ("data", ctypes.c_void_p)]


said = []


@Talk
def talk(count, messages, responses, _):
    said.extend(messages[index].contents.text.decode() for index in range(count))
    answers = LIBC.calloc(count, ctypes.sizeof(Response))
    responses[0] = ctypes.cast(answers, ctypes.POINTER(Response))
    return 0


def report(answer):
    print(json.dumps({"answer": answer, "said": said}), flush=True)
    said.clear()


def resources():
    """Open descriptors, and threads."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


directory, service, user, flags, *assignments = (word.encode() for word in sys.argv[1:])
before = resources()
handle, conversation = ctypes.c_void_p(), Conversation(talk, None)
if PAM.pam_start_confdir(service, user, ctypes.byref(conversation), directory, ctypes.byref(handle)) != 0:
    sys.exit("pam_start_confdir failed")
for assignment in assignments:
    PAM.pam_putenv(handle, assignment)
opened = PAM.pam_open_session(handle, int(flags))
report(opened)
sys.stdin.readline()
report(PAM.pam_close_session(handle, 0))
PAM.pam_end(handle, 0)
if opened == 0 and resources() != before:
    sys.exit(f"descriptors and threads: {before} before the session, {resources()} after it")
