# SPDX-License-Identifier: GPL-2.0-or-later
"""The cases, by what they are about."""

from . import amounts, daemons, docker, docker_limits, docker_restarts, failure, gpus, life, limits, local, schedds  # noqa: F401
