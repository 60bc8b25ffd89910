# SPDX-License-Identifier: GPL-2.0-or-later
"""What tests/check.py is made of: the groups, how they run side by side, and what is read of their output."""
