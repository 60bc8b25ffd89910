# SPDX-License-Identifier: GPL-2.0-or-later
"""'jobfence setup' on an execution host that has something already."""

import re

from contract.commands import setup
from contract.harness import case, expect, expect_equal, expect_in


@case
def set_up_beside_others(site):
    """A host's own configuration stays, and so does what somebody changes in it meanwhile. A shepherd of the site's own is not replaced."""
    def host(**keys):
        file = site.home / site.node
        file.write_text("".join(f"{key} {value}\n" for key, value in keys.items()))
        option = "-Aconf" if site.command("qconf", "-sconf", site.node).returncode else "-Mconf"
        site.qconf(option, str(file))

    def values():
        text = re.sub(r" *\\\n *", "", site.command("qconf", "-sconf", site.node).stdout)
        return dict(line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#"))
    with site.not_set_up(load_sensor="/opt/site/global"):
        try:
            host(shepherd_cmd="/opt/site/shepherd")
            expect_in("shepherd_cmd is /opt/site/shepherd", setup(site, 1, "--central"), "what it says")
            host(mailer="/opt/site/mail", load_sensor="/opt/site/one")
            cluster = site.what_setup_changes()
            setup(site, 2, "--central")
            for what in "global", "complexes":
                expect_equal(site.what_setup_changes()[what], cluster[what], f"{what} of the cluster")
            found = values()
            sensor = found["load_sensor"]
            expect(sensor.startswith("/opt/site/one,") and sensor.endswith("/gridengine/load-sensor"), f"load_sensor is {sensor}")
            expect_equal((found["mailer"], found["shepherd_cmd"]), ("/opt/site/mail", str(site.jobfence)), "the others")
            host(**{**found, "mailer": "/opt/site/other"})
            setup(site, 2, "--undo", "--central")
            expect_equal(values(), {"mailer": "/opt/site/other", "load_sensor": "/opt/site/one"}, "what the host has then")
        finally:
            site.command("qconf", "-dconf", site.node)
