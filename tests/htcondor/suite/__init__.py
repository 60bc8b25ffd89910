# SPDX-License-Identifier: GPL-2.0-or-later
"""The cases, by what they are about.

Beside `release=True` stands which case notices the same, or what takes too long for 'make check'.
"""

from contract import cases  # noqa: F401

from . import amounts, daemons, docker, docker_limits, docker_restarts, failure, gpus, health, life, limits, local, requests_and_cards, schedds, set_up, transfers, whose  # noqa: F401
