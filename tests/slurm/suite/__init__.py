# SPDX-License-Identifier: GPL-2.0-or-later
"""The cases, in the order in which they run."""

from . import limits, ends, configuration, user, placement, beside_systemd, two_nodes, adopted  # noqa: F401
