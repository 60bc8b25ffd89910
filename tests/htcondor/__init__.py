# SPDX-License-Identifier: GPL-2.0-or-later
"""Cases of HTCondor. A Python package of this name is installed beside HTCondor, and this one goes first."""
