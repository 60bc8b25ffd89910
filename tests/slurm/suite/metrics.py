# SPDX-License-Identifier: GPL-2.0-or-later
"""MetricsFile: figures for Prometheus, written by the janitor of the node."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from contract.harness import MIB, PYTHON, case, expect, expect_equal, fenced, running
from contract.sites import until
from .stored import held
from .with_systemd import service_with

DASHBOARD = Path(__file__).resolve().parents[3] / "docs/grafana/jobfence.json"


def figures(text):
    """Each sample by its name and labels."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            expect(name not in found, f"twice: {name}")
            found[name] = float(value)
    return found


def check_by_promtool(text):
    if not shutil.which("promtool"):
        expect(os.environ.get("CI") != "true", "promtool is missing")
        return "without promtool"
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    expect_equal((done.returncode, done.stdout + done.stderr), (0, ""), "what promtool says")
    # As rules, since those are what it understands.
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    # The one variable that stands where no text can be.
    labels = next(one for one in dashboard["templating"]["list"] if one["name"] == "by")["query"].split(",")
    queries = [query.replace("$by", label) for query in queries for label in (labels if "$by" in query else labels[:1])]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    done = subprocess.run(["promtool", "check", "rules", "/dev/stdin"], capture_output=True, text=True,
                          input=json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    expect_equal((done.returncode, done.stderr), (0, ""), "what promtool says of the dashboard's queries")
    return f"by promtool's rules, and {len(queries)} queries"


@case(on=["private"], layout=False)
def figures_for_prometheus(site):
    """The file has a running job's figures, and how many steps were fenced; it is whole at every moment."""
    user = site.users[0]
    burn = f"{PYTHON} -S -c 'import time\nb = b\"x\" * (60 << 20)\nwhile True: time.sleep(0.01)'"
    path = site.home / "jobfence.prom"
    with held(site, MetricsFile=path):
        jobid, group = running(site, user, burn, "--mem=200", "-n1")
        until(lambda: path.exists() and figures_of(path, jobid).get("jobfence_job_memory_bytes", 0) > 60 * MIB, 15, "the job's figures")
        text = path.read_text()
        found = figures_of(path, jobid)
        expect_equal(found["jobfence_job_memory_limit_bytes"], group.parent.memory_limit(), "the limit of memory")
        expect_equal(found["jobfence_job_cpu_limit_cpus"], group.parent.cpu_limit(), "the limit of CPU time")
        expect_equal(found["jobfence_job_cpu_granted_cpus"], 1.0, "the CPUs that were granted")
        expect_equal(found["jobfence_job_memory_granted_bytes"], 200 * MIB, "the memory that was granted")
        expect(re.search(r'jobfence_job_steps\{.*partition="[^"]+"', text), f"no partition: {text}")
        expect(found["jobfence_job_steps"] >= 1, f"steps: {found['jobfence_job_steps']}")
        expect_equal(re.search(r'jobfence_job_steps\{.*user="([^"]*)"', text)[1], user, "the user")
        expect(figures(text)['jobfence_begun_steps_total{outcome="fenced"}'] >= 1, "no step was counted")
        expect_equal(figures(text)["jobfence_begin_seconds_count"], figures(text)['jobfence_begun_steps_total{outcome="fenced"}'],
                     "the histogram's count")
        site.end(jobid)
        until(lambda: f'jobid="{jobid}"' not in path.read_text(), 15, "the end of the job's figures")
        expect_equal(path.stat().st_mode & 0o777, 0o644, "the file's mode")
    names = set(re.findall(r"jobfence_\w+", DASHBOARD.read_text()))
    known = set(re.findall(r"(?m)^(jobfence_\w+)", text)) | set(re.findall(r"# TYPE (\w+)", text))
    # What this kernel does not tell is not in the file.
    known |= {f"jobfence_job_{name}_total" for name in ("read_bytes", "written_bytes", "forks_refused", "pressure_seconds")}
    known |= {"jobfence_job_processes", "jobfence_job_processes_limit"}
    # Nor is this without a GPU, and in a virtual machine.
    known |= {"jobfence_job_gpu_utilization_ratio", "jobfence_node_energy_joules_total"}
    expect(names <= known, f"the dashboard asks for {names - known}")
    return check_by_promtool(text)


@case(on=["installed"])
def metrics_say_what_was_granted(site):
    """Limits are the job's, also where the kernel's have room for Slurm's daemons; and what it was granted stands beside them."""
    path = site.home / "jobfence.prom"
    with service_with(site, MetricsFile=path, ReapInterval=1, MaxProcesses="100", CPUQuotaPercent="50"):
        jobid = site.submit(site.users[0], "sleep 300", "-c2", "--mem=200")
        fenced(site, jobid)
        until(lambda: path.exists() and f'jobid="{jobid}"' in path.read_text(), 30, "the job's figures")
        text, found = path.read_text(), figures_of(path, jobid)
        for name, value in {"cpu_limit_cpus": 1.0, "cpu_granted_cpus": 2.0, "processes_limit": 100.0,
                            "memory_granted_bytes": 200.0 * MIB}.items():
            expect_equal(found[f"jobfence_job_{name}"], value, name)
        expect(re.search(rf'account="[^"]*",jobid="{jobid}",partition="[^"]+"', text), f"no partition: {text}")
        site.end(jobid)


def figures_of(path, jobid):
    """A job's, by the names alone."""
    return {name.split("{")[0]: value for name, value in figures(path.read_text()).items() if f'jobid="{jobid}"' in name}
