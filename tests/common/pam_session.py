# SPDX-License-Identifier: GPL-2.0-or-later
"""Opens a PAM session as sshd does: pam_session.py DIRECTORY SERVICE USER [NAME=VALUE...].

DIRECTORY stands for /etc/pam.d, the assignments for what a user may put into PAM's environment. Says what PAM answered
and told the user, then waits for a line and closes the session.
"""

import ctypes
import json
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


directory, service, user, *assignments = (word.encode() for word in sys.argv[1:])
handle, conversation = ctypes.c_void_p(), Conversation(talk, None)
if PAM.pam_start_confdir(service, user, ctypes.byref(conversation), directory, ctypes.byref(handle)) != 0:
    sys.exit("pam_start_confdir failed")
for assignment in assignments:
    PAM.pam_putenv(handle, assignment)
report(PAM.pam_open_session(handle, 0))
sys.stdin.readline()
report(PAM.pam_close_session(handle, 0))
