# SPDX-License-Identifier: GPL-2.0-or-later
"""The cases, by what they are about."""

from contract import cases  # noqa: F401

from . import again, asked, capacity, failure, hostile, life, limits, parallel, sessions, set_up  # noqa: F401
