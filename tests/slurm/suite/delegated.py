# SPDX-License-Identifier: GPL-2.0-or-later
"""Delegate: a job divides its own cgroup, and stays below its limits."""

from contract import kernel
from contract.harness import HAS_RUN, MIB, PYTHON, Skip, case, expect, expect_equal, expect_gone, expect_in, fenced, has_run
from contract.sites import until

from .failure import placed

# What a pilot does: leaves the directory that it was started in, turns controllers on, and gives a payload less than it has itself.
DIVIDE = f"""cat >divide.py <<'EOF'
import errno, os, subprocess, sys
place = next(line[3:].strip() for line in open("/proc/self/cgroup") if line.startswith("0::"))
own = "/sys/fs/cgroup" + place
def tried(what, path, text):
    try:
        with open(path, "w") as file:
            file.write(text)
        print(what, "SUCCEEDED", flush=True)
    except OSError as error:
        print(what, errno.errorcode[error.errno], flush=True)
for name in "memory.max", "pids.max", "cpu.max", "cgroup.max.descendants":
    tried(name, f"{{own}}/{{name}}", "max")
above = os.path.dirname(own)
tried("above", f"{{above}}/memory.max", "max")
tried("out", f"{{above}}/cgroup.procs", str(os.getpid()))
tried("kill", f"{{above}}/cgroup.kill", "1")
os.mkdir(f"{{own}}/pilot")
for pid in open(f"{{own}}/cgroup.procs").read().split():
    tried("pilot", f"{{own}}/pilot/cgroup.procs", pid)
tried("controllers", f"{{own}}/cgroup.subtree_control", "+cpu +memory +pids")
os.mkdir(f"{{own}}/payload")
tried("limit", f"{{own}}/payload/memory.max", str(24 << 20))
eats = "import os; open(os.environ['INTO'], 'w').write('0'); b = bytes([1]) * (90 << 20)"
done = subprocess.run([sys.executable, "-S", "-c", eats], env={{"INTO": f"{{own}}/payload/cgroup.procs"}})
print("payload", done.returncode, flush=True)
print("own", place, flush=True)
EOF
{PYTHON} -S divide.py
{HAS_RUN}
sleep 300
"""
# Of such a size that a launch does not wait for its removal.
CROWD = f"""cat >crowd.py <<'EOF'
import os, sys
place = next(line[3:].strip() for line in open("/proc/self/cgroup") if line.startswith("0::"))
os.chdir("/sys/fs/cgroup" + place)
top = os.getcwd()
for level in range(100):
    os.mkdir("deep")
    os.chdir("deep")
os.chdir(top)
for number in range(700):
    os.mkdir(f"wide{{number}}")
open(sys.argv[1], "w").close()
number = 0
while True:
    number += 1
    try:
        os.mkdir(f"more{{number % 50}}")
    except OSError:
        pass
    try:
        os.rmdir(f"more{{number % 50}}")
    except OSError:
        pass
EOF
exec {PYTHON} -S crowd.py "$PWD/ran.$JOB_ID"
"""


def needs_own(site):
    if not kernel.has_v2_controllers() or placed(site).slurms:
        raise Skip("a cgroup can be divided on cgroup v2 alone, and where it is not Slurm's")


@case
def divided_by_its_user(site):
    """The user has cgroups with limits of their own, and none of the site's is within reach."""
    needs_own(site)
    site.configure(Delegate="request")
    jobid = site.submit(site.users[0], DIVIDE, "-c1", "--mem=200", "--delegate=yes")
    group = fenced(site, jobid)
    until(lambda: has_run(site, jobid), 120, "what the job does")
    said = dict(line.split(" ", 1) for line in site.output(jobid).splitlines() if " " in line)
    for what in "memory.max", "pids.max", "cpu.max", "cgroup.max.descendants", "above", "out", "kill":
        expect(said.get(what) in ("EACCES", "EPERM", "ENOENT"), f"{what} of the job: {said.get(what)}")
    for what in "pilot", "controllers", "limit":
        expect_equal(said.get(what), "SUCCEEDED", f"{what} in the job's own cgroup")
    expect_equal(said.get("payload"), "-9", "how a payload ends that is above the limit which the job gave it")
    site.expect_limits(group, 1, 200)
    expect_equal(group.memory_limit(), 200 * MIB, "memory of the step")
    expect(len(group.members(below=True)) >= 1, "no process of the job is below the step")
    site.end(jobid)
    expect_gone(group)


@case
def divided_without_end(site):
    """Eight hundred cgroups, a hundred of them in each other, and new ones while the job is cancelled: nothing is left."""
    needs_own(site)
    site.configure(Delegate="yes")
    jobid = site.submit(site.users[0], CROWD, "-c1", "--mem=200")
    group = fenced(site, jobid)
    until(lambda: has_run(site, jobid), 300, "the job's cgroups")
    site.scancel(jobid)
    site.wait(jobid, timeout=300)
    expect_gone(group, timeout=300)


@case
def not_divided(site):
    """A user does not get it from a site that gives it to nobody, nor where the kernel cannot do it. A job may decline it."""
    user, slurms = site.users[0], placed(site).slurms
    done = site.srun(user, "--mem=50", "--delegate=yes", "true")
    expect(done.returncode != 0, "a job has divided its cgroup although the site does not allow it")
    expect_in("this site lets this job make no cgroups of its own", done.stderr, "what srun says")
    site.configure(Delegate="yes")
    reason = "a job can divide its cgroup only on cgroup v2"
    if kernel.has_v2_controllers():
        reason = slurms and "the scheduler itself has the job's processes in cgroups"
    if reason:
        done = site.srun(user, "--mem=50", "true")
        expect(done.returncode != 0, "a job ran that should divide its cgroup, and cannot")
        expect_in(reason, done.stderr, "what srun says")
    owner = "stat -c %u /sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)"
    done = site.srun(user, "--mem=50", "--delegate=no", "sh", "-c", owner if kernel.has_v2_controllers() else "true")
    expect_equal(done.returncode, 0, f"status of a job that declines ({done.stderr.strip()})")
    # Slurm 22.05 itself gives the directories of tasks to their users.
    if kernel.has_v2_controllers() and not site.slurm_tracks():
        expect_equal(done.stdout.strip(), "0", "the owner of the directory of a job that declines")
