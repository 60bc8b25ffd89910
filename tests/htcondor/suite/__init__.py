# SPDX-License-Identifier: GPL-2.0-or-later
"""The cases, by what they are about."""

from . import docker, failure, life, limits, local  # noqa: F401
