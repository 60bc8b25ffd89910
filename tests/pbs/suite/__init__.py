# SPDX-License-Identifier: GPL-2.0-or-later
"""The cases, in the order in which they run. To import a module declares its cases."""

from contract import cases  # noqa: F401

from . import plain, limits, life, tasks, sessions, moms, used, failure, preempted, way_back, hosts, released, waits, devices, swap, scripts, words, set_up  # noqa: F401
