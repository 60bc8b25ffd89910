# SPDX-License-Identifier: GPL-2.0-or-later
"""The cases, in the order in which they run."""

from contract import cases  # noqa: F401

from . import (  # noqa: F401
    limits, memory, usage, sharing, delegated, cores, huge_pages, disks, devices, asked, ends, steps, life, reference, configuration, slurms_files,
    sections, facts, explained, manual, failure, user, hostile, placement, agreement, newer, card, configless, with_systemd, left_behind,
    two_nodes, card_nodes, granted, stored, idle, again, time_limit, signal_at, lend, outgrown, resized, metrics, adopted, commands, installed, used,
    pictures, private, quota,
)
