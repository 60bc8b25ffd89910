# SPDX-License-Identifier: GPL-2.0-or-later
"""'jobfence setup' on a host with startd and schedd, where somebody else has written into its file."""

from contract.commands import set_up_here, setup
from contract.harness import case, expect_in

from ..sites import SET_UP


@case
def set_up_beside_others(site):
    """A file with lines of the site's stays as it is."""
    with set_up_here(site):
        ours = SET_UP.read_text()
        SET_UP.write_text(f"{ours}USER_JOB_WRAPPER = /opt/site/wrapper\n")
        expect_in("has lines that are not of 'jobfence setup'", setup(site, 1), "what it says")
        expect_in("/opt/site/wrapper", SET_UP.read_text(), "the file then")
        SET_UP.write_text(ours)
