# SPDX-License-Identifier: GPL-2.0-or-later
"""The cases, in the order in which they run."""

from . import limits, ends, configuration, failure, user, beside_systemd, two_nodes  # noqa: F401
