#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The pages of 'jobfence report --html' in a real browser: browser.py --bin FILE [--keep DIRECTORY]

Chromium renders it narrow and wide, light and dark, and prints it. With --keep, the pictures stay there to be looked at.
"""

import argparse
import base64
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
LACKS = 77  # for check.py: this machine lacks something
GIB, MIB = 1 << 30, 1 << 20
HOSTILE = "al<script>window.hurt=1</script>ice\u202e\u0007", "physics'\"><img src=x onerror=window.hurt=1>", "&lt;b&gt; <b>"
STORED = "4714"
NARROW, MIDDLE, WIDE = 360, 800, 1400
ZONE = "XYZ-5:30"  # as POSIX writes it: 5 h 30 min before UTC
MANY = 40  # steps
HERE = os.uname().nodename
LEAST_CONTRAST = 4.5  # of text to what is behind it, by WCAG 2.2, level AA

# Each element with text of its own: the colours of the text and of what is behind it.
COLOURS = """
const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!c.endsWith(', 0)') && c !== 'transparent') return c; } return 'none'; };
return [...document.querySelectorAll('body *')].filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
    .map(e => [e.tagName + '.' + e.className, getComputedStyle(e).color, behind(e)]);
"""
# Each bar beside the text with its share.
BARS = """
return [...document.querySelectorAll('svg.bar')].map(svg => [
    svg.querySelector('.fill').getBoundingClientRect().width / svg.querySelector('.track').getBoundingClientRect().width,
    svg.getBoundingClientRect().width, svg.parentElement.innerText]);
"""
# Each drawing over time: the size of its line's box, of the dashed limit's, and what else is in it.
DRAWN = """
return [...document.querySelectorAll('svg.chart, svg.small')].map(svg => {
    const all = svg.getBoundingClientRect();
    const top = Math.min(...[...svg.querySelectorAll('.line')].map(e => e.getBoundingClientRect().top));
    const limit = svg.querySelector('.limit')?.getBoundingClientRect();
    const share = limit ? (all.bottom - top) / (all.bottom - limit.top) : null;
    return {name: svg.getAttribute('aria-label'), large: svg.classList.contains('chart'), share, wide: all.width,
            reached: svg.querySelectorAll('.reached').length, kills: svg.querySelectorAll('.kill').length,
            marks: svg.parentElement.querySelectorAll('.mark').length}; });
"""
# Labels of a scale that lie on one another.
COVERED = """
return [...document.querySelectorAll('.scale')].flatMap(scale => {
    const boxes = [...scale.children].map(e => [e.getBoundingClientRect(), e.innerText]);
    return boxes.filter(([a], at) => boxes.some(([b], other) => other > at && a.top < b.bottom - 2 && b.top < a.bottom - 2)).map(b => b[1]); });
"""
ROWS = "return [...document.querySelectorAll('th[role=rowheader]')].map(e => e.innerText)"
OPEN_ALL = "document.querySelectorAll('details').forEach(e => { e.open = true; })"
# What stands out of the page, or is cut off by what is around it.
OUTSIDE = """
const wide = document.documentElement.clientWidth;
return [...document.querySelectorAll('body *')].filter(e => e.closest('thead') === null).filter(e => {
    const box = e.getBoundingClientRect(); return box.right > wide + 0.5 || box.left < -0.5; }).map(e => e.outerHTML.slice(0, 90));
"""


def line(step, began, ended, wall, cpu, peak, **more):
    """A line of the usage log as it is written."""
    return {
        "schema": "jobfence-usage-1", "node": "node7", "job": "4711", "step": step, "run": 0, "uid": 1001,
        "user": HOSTILE[0], "partition": HOSTILE[2], "account": HOSTILE[1], "qos": "normal", "project": None,
        "holder": "scheduler Slurm", "end": "closed", "exit_status": 0, "exit_signal": None,
        "started": f"2026-11-25T{began}Z", "ended": f"2026-11-25T{ended}Z", "wall_seconds": wall,
        "cpus_granted": 4, "cpus_limit": 4, "memory_granted_bytes": 4 * GIB, "memory_limit_bytes": 4 * GIB,
        "processes_limit": 1000, "cpu_seconds": cpu, "periods": 12000, "throttled_periods": 300, "throttled_seconds": 2.5,
        "memory_peak_bytes": peak, "job_memory_peak_bytes": peak, "swap_peak_bytes": 0, "memory_high_events": 0,
        "memory_max_events": 0, "memory_anonymous_bytes": peak // 2, "memory_file_bytes": peak // 4,
        "memory_shared_bytes": 0, "memory_kernel_bytes": MIB, "memory_swap_bytes": 0, "oom_kills": 0, "forks_refused": 0,
        "processes_peak": 9, "read_bytes": 5 * GIB, "written_bytes": 512 * MIB, "read_operations": 900, "write_operations": 9,
        "disks": [{"disk": "8:0", "read_bytes": 5 * GIB, "written_bytes": 512 * MIB, "read_operations": 900, "write_operations": 9}],
        "cpu_pressure_some_seconds": 12.0, "memory_pressure_some_seconds": 0.0, "io_pressure_some_seconds": 33.0,
        "tasks": [], "sentences": [], **more,
    }


def disk():
    """A disk of this machine, by its number and its name, and one that no machine has."""
    for number in sorted(os.listdir("/sys/dev/block")) if os.path.isdir("/sys/dev/block") else []:
        device = Path("/sys/dev/block", number)
        mapped = device / "dm/name"
        return number, mapped.read_text().strip() if mapped.exists() else device.resolve().name
    return "4095:7", "disk 4095:7"


def many():
    """A job of this node with many steps, in the order in which they ended. One of them was killed."""
    used = [{"disk": number, "read_bytes": size, "written_bytes": 0, "read_operations": size, "write_operations": 0}
            for number, size in ((disk()[0], 3 * MIB), ("4095:9", 0))]
    steps = [("extern", {}), ("batch", {"disks": used, "read_bytes": 3 * MIB}), *((str(number), {}) for number in sorted(range(MANY), key=str))]
    killed = {"oom_kills": 1, "exit_status": 1}
    return [line(step, "03:00:00", "04:00:00", 3600.0, 9000.0, (number % 8 + 1) * GIB // 2,
                 **{"job": "4715", "node": HERE, "job_name": HOSTILE[2], "disks": [], "read_bytes": 0, "written_bytes": 0,
                    "memory_anonymous_bytes": 5 * MIB, **more, **(killed if step == "7" else {})})
            for number, (step, more) in enumerate(steps)]


def log():
    """A job of three steps and four tasks that had far too much, one that was killed, one of which little is known, and one of many steps."""
    tasks = [{"task": number, "exit_status": 0, "exit_signal": None, "cpu_seconds": 600.0 * (number + 1), "processes_peak": 2,
              "memory_peak_bytes": 100 * MIB * (number + 1), "read_bytes": None, "written_bytes": None} for number in range(4)]
    killed = {"job": "4712", "user": "bob", "account": "b", "partition": "short", "oom_kills": 2, "exit_status": None,
              "exit_signal": 9, "processes_peak": None, "read_bytes": None, "written_bytes": None, "disks": None,
              "memory_anonymous_bytes": 0, "memory_file_bytes": 0, "memory_kernel_bytes": 0, "throttled_seconds": 0.0,
              "cpu_pressure_some_seconds": 0.0, "io_pressure_some_seconds": 0.0,
              "sentences": ["job 4712 step batch: process 4242 (<b>python3</b>) was killed: the job reached its memory limit"]}
    unknown = {name: None for name, value in line("0", "", "", 1.0, 1.0, 1).items() if isinstance(value, (int, float, list))}
    return [
        line("0", "03:23:30", "04:20:00", 3390.0, 4500.5, 900 * MIB, tasks=tasks),
        line("1", "04:20:10", "04:21:00", 50.0, 40.0, 300 * MIB),
        line("batch", "03:23:22", "04:23:22", 3600.0, 3.2, 30 * MIB, job_memory_peak_bytes=1000 * MIB),
        line("batch", "05:23:22", "05:53:22", 1800.0, 900.0, 4 * GIB, **killed),
        *many(),
        line("0" * 300, "06:00:00", "06:00:10", 10.0, 1.0, 1, **{**unknown, "job": "4713", "end": "reaped", "sentences": []}),
    ]


def stored(top):
    """A sacct that has one job of two nodes: when it was submitted, and its comment in the format of jobstats."""
    nodes = {"node1": {"total_time": 3600.0, "cpus": 2, "total_memory": 4 * GIB, "used_memory": GIB},
             "node<2>": {"total_time": 36.0, "cpus": 2, "total_memory": 4 * GIB, "used_memory": 3 * GIB}}
    summary = {"nodes": nodes, "total_time": 3600, "gpus": False, "jobfence": 1}
    comment = "JS1:" + base64.b64encode(gzip.compress(json.dumps(summary).encode())).decode()
    (top / "bin").mkdir()
    (top / "bin/sacct").write_text(f"#!/bin/sh\necho '1764041011|{comment}'\n")
    (top / "bin/sacct").chmod(0o755)


def series():
    """What was sampled: memory that grows, with a stretch of which nothing is known; memory at its limit, and kills there; and many steps."""
    known = [number if not 40 <= number < 50 else None for number in range(100)]
    grown = sampled("4711", "0", "03:23:31", 30.0, [one and one * 9 * MIB for one in known], file_bytes=[one and one * MIB for one in known],
                    processes=known)
    # At the limit from the 80th sample on, twice a kill, and a third one after the last sample.
    full = [min(number * GIB // 20, 4 * GIB) if number < 90 else GIB for number in range(100)]
    died = sampled("4712", "batch", "05:23:22", 18.0, full, memory_max_events=[max(0, number - 79) for number in range(100)],
                   oom_kills=[int(number >= 90) for number in range(100)], periods=[1000 * number for number in range(100)],
                   throttled_periods=[0 if number < 50 else 500 * (number - 50) for number in range(100)])
    steps = [sampled("4715", name, "03:00:00", 36.0, [(number + at % 30) * GIB // 16 for at in range(100)])
             for number, name in enumerate(map(str, range(MANY)))]
    return [grown, died, *steps]


def sampled(job, step, started, every, memory, **more):
    at = [every * number for number in range(100)]
    unknown = {name: [None] * 100 for name in ("file_bytes", "processes", "read_bytes", "written_bytes")}
    return {
        "schema": "jobfence-series-1", "name": "/x", "job": job, "step": step, "run": 0, "uid": 1001,
        "started": f"2026-11-25T{started}Z", "stride": 1, "at_seconds": at, "cpu_seconds": [1.5 * one for one in at],
        "memory_bytes": memory, **unknown, **more,
    }


class Untrue(Exception):
    """The page is not as it should be."""


def expect(is_so, text):
    if not is_so:
        raise Untrue(text)


def luminance(colour):
    """By WCAG 2.2, of a colour as browsers compute it."""
    def linear(part):
        part /= 255
        return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
    red, green, blue = (linear(float(part)) for part in re.findall(r"[\d.]+", colour)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


class Browser:
    """Chromium, without a screen."""

    def __init__(self, top):
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                       "--hide-scrollbars", f"--user-data-dir={top}/profile"):
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = Service("/usr/bin/chromedriver", log_path=str(top / "driver.log"))
        self.driver = webdriver.Chrome(options=options, service=service)

    def open(self, page, width, scheme):
        """The page at this width, and what the browser has asked for meanwhile."""
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.driver.get_log("performance")
        self.driver.get(page.as_uri())
        sent = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [one["params"]["request"]["url"] for one in sent if one["method"] == "Network.requestWillBeSent"]

    def command(self, name, **arguments):
        return self.driver.execute_cdp_cmd(name, arguments)

    def run(self, script):
        return self.driver.execute_script(script)


def look(browser, page, width, scheme):
    """What holds for every page."""
    asked = browser.open(page, width, scheme)
    expect(asked == [page.as_uri()], f"it has asked for {asked}")
    expect(browser.driver.get_log("browser") == [], "the browser has complained")
    expect(browser.run("return document.scripts.length") == 0, "there is a script")
    expect(browser.run("return window.hurt === undefined"), "a text has run as a script")
    expect(browser.run("return document.querySelectorAll('img, link, iframe, b, i').length") == 0, "a text has become an element")
    expect(browser.run("return document.documentElement.scrollWidth") <= width, "the page is wider than the window")
    for opened in "return 0", OPEN_ALL:
        browser.run(opened)
        expect(browser.run(OUTSIDE) == [], f"out of the window: {browser.run(OUTSIDE)}")
        expect(browser.run("return document.documentElement.scrollWidth") <= width, "the page is wider than the window")
    expect(browser.run(COVERED) == [], f"on one another: {browser.run(COVERED)}")
    for what, text, behind in browser.run(COLOURS):
        found = contrast(text, behind)
        expect(found >= LEAST_CONTRAST, f"{what} has a contrast of {found:.2f}: {text} on {behind}")
    for share, wide, text in browser.run(BARS):
        said = float(re.search(r"([\d.]+) %", text)[1])
        expect(abs(100 * share - min(said, 100)) <= 0.1, f"a bar of {100 * share:.1f} % beside {text!r}")
        expect(wide >= 40, f"a bar of {wide} pixels")
    return browser.run("return document.body.innerText")


def expect_texts(said, *wanted):
    said = " ".join(said.split())
    for text in wanted:
        expect(text in said, f"{text!r} is not in {said!r}")


def of_job(said, drawn, rows):
    expect_texts(
        said, "Job 4711", "! Wasteful: the job completed after 1 h 0 min. It used 32 % of its CPU time and 24 % of its memory.",
        "al<script>window.hurt=1</script>ice?? (uid 1001) on node node7", HOSTILE[1], HOSTILE[2],
        "2026-11-25 08:53:22 to 09:53:22 (XYZ, UTC+05:30), 1 h 0 min In UTC: 2026-11-25T03:23:22Z to 2026-11-25T04:23:22Z",
        "CPU time 31.6 % 1 h 15 min of 4 h 0 min, 4 CPUs", "Memory 24.4 % 1000.0 MiB of 4.0 GiB at the most",
        "Processes 0.9 % 9 of 1000 at the most", "15.0 GiB read, 1.5 GiB written", "Held back 2.5 % 7 s",
        "#SBATCH --mem=1280M peak was 1000.0 MiB of 4.0 GiB; 25 % reserve", "1.2 of 4 CPUs were busy on average",
        "Step 0 CPUs: 1.5 to 1.5 of 4", "Memory: 0 B to 891.0 MiB of 4.0 GiB; at most 99.0 MiB of page cache",
        "limit 4.0 GiB", "2.0 GiB", "08:53:30", "09:50:00 56 min 30 s", "0, task 3", "400.0 MiB", "450.0 MiB", "disk 8:0", "What GPUs did.",
    )
    # With few steps, each has large ones.
    expect([one["large"] for one in drawn] == [True, True], f"the drawings are {drawn}")
    for one in drawn:
        share = 1.5 / 4 if "CPUs" in one["name"] else 891 / 4096
        expect(abs(one["share"] - share) < 0.03, f"the line is at {one['share']:.2f} of its limit, not at {share:.2f}: {one}")
        expect((one["reached"], one["kills"], one["marks"]) == (0, 0, 0), f"it has not been at its limit: {one}")


def of_killed(said, drawn, rows):
    expect_texts(said, "✕ Killed: 2 processes were killed for lack of memory; the job was ended by signal 9 after 30 min 0 s.",
                 "(<b>python3</b>) was killed", "Memory 100.0 %", "#SBATCH --mem=6G 4.0 GiB was not enough",
                 "signal 9; 2 killed for lack of memory", "Disks unknown", "The peak of processes.",
                 "at the limit within 6 min 0 s; ✕ 1 process killed between 26 min 42 s and 27 min 0 s; ✕ 1 process killed between",
                 "29 min 42 s and 30 min 0 s", "held back by the quota within 14 min 42 s",
                 "Left out, since all that is known of it is zero: memory at the end, time spent waiting. jobfence report 4712 --json has all figures.")
    expect("What the memory of each step" not in said, "zeros are shown")
    cpus, memory = drawn[:2]
    expect(abs(memory["share"] - 1) < 0.03, f"the line does not reach the limit: {memory}")
    expect((memory["kills"], memory["marks"]) == (2, 2) and memory["reached"] > 0, f"the kills are not marked: {memory}")
    expect(cpus["reached"] > 0 and cpus["kills"] == 0, f"the quota's part is not marked: {cpus}")


def of_many(said, drawn, rows):
    order = rows[: MANY + 2]
    expect(order == ["batch", "extern", *map(str, range(MANY))], f"the steps are in the order {order}")
    number, name = disk()
    shown = name if name.startswith("disk ") else f"{name} ({number})"
    expect_texts(said, f"Job 4715 {HOSTILE[2]}", "1 process was killed for lack of memory; the job completed", "used of 4 CPUs and 4.0 GiB", "exit status 1; 1 killed for lack",
                 "1 process killed, it is not known when", f"batch, {shown}", "39 more steps have small curves in the table")
    expect("4095:9" not in said, "a disk without use is shown")
    large, small = [one for one in drawn if one["large"]], [one for one in drawn if not one["large"]]
    expect((len(large), len(small)) == (2, 2 * MANY), f"{len(large)} large and {len(small)} small drawings")
    expect(all(one["wide"] >= 60 for one in drawn), f"too small: {drawn}")


def of_unknown(said, drawn, rows):
    expect_texts(said, "? Ended: how the job ended is not known.", "CPU time unknown", "Memory unknown", "Processes unknown",
                 "the janitor found it", "how the job ended is not known", "The CPU time.", "The peak of memory.",
                 "What the memory consisted of at the end.")
    expect(drawn == [] and "Left out" not in said, f"what is not known is said to be zero: {said!r}")
    expect(not re.search(r"\b0 (B|s)\b", said), f"what is not known is said to be nothing: {said!r}")


def of_stored(said, drawn, rows):
    expect_texts(said, "Job 4714", "is not known. It used 25 % of its CPU time and 75 % of its memory.", "on 2 nodes", "CPU time 25.2 % 1 h 0 min of 4 h 0 min", "Memory 75.0 % 3.0 GiB of 4.0 GiB",
                 "on node<2>", "36 s (0.5 %)", "1.0 GiB (25.0 %)")


def summary(binary, top, by):
    """The page about all jobs of a site, with a hostile name among those of its users."""
    logs = top / "logs"
    if not logs.exists():
        logs.mkdir()
        made = [sys.executable, "-B", str(Path(__file__).parent / "usage_log.py"), "--lines", "20000", str(logs / "site.jsonl")]
        subprocess.run(made, check=True, timeout=300)
        (logs / "hostile.jsonl").write_text("".join(json.dumps(one) + "\n" for one in log()))
    page = top / f"by-{by}.html"
    command = [binary, "report", "--by", by, "--logs", logs, "--price-cpu-hour", "0.02", "--currency", "EUR", "--html", page]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    expect(done.returncode == 0, f"{' '.join(map(str, command))} has ended with {done.returncode}: {done.stderr}")
    return page


def of_summary(said):
    expect_texts(said, "What jobs used, by ", "All jobs that ended from 2026-03-25 to", "% of the CPU time that they reserved.",
                 "stood idle day and night", "Week by week", "Wasted most", "Used most of what they reserved", "ask for ",
                 "later runs that such advice would have given less", "A CPU-hour costs 0.02 EUR", "GPUs that were held: known of no job")


def printed(browser, page, keep):
    """On A4 paper: nothing is cut off, and no large dark part costs ink."""
    browser.open(page, WIDE, "dark")
    pdf = base64.b64decode(browser.command("Page.printToPDF", printBackground=False, paperWidth=8.27, paperHeight=11.69)["data"])
    keep("print.pdf", pdf)
    # What the printer lays out has this width between its margins, at 96 dots an inch.
    browser.command("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    browser.command("Emulation.setDeviceMetricsOverride", width=718, height=900, deviceScaleFactor=1, mobile=False)
    expect(browser.run(OUTSIDE) == [], f"out of the paper: {browser.run(OUTSIDE)}")
    hidden = browser.run("return [...document.querySelectorAll('.more td')].filter(e => !e.getClientRects().length).length")
    expect(hidden == 0, f"{hidden} cells are folded away on paper")
    for what, text, _ in browser.run(COLOURS):
        expect(contrast(text, "rgb(255, 255, 255)") >= LEAST_CONTRAST, f"{what} is {text} on white paper")
    browser.command("Emulation.setEmulatedMedia", media="", features=[])
    return len(re.findall(rb"/Type\s*/Page\b", pdf))


def files(binary, top):
    """How the file is written: a link is not followed, a directory is refused, and the page is whole."""
    target, link = top / "target", top / "link.html"
    target.write_text("a file of others\n")
    link.symlink_to(target)
    report(binary, top, "4711", link)
    expect(target.read_text() == "a file of others\n", "a link was followed")
    expect(not link.is_symlink() and link.read_text().endswith("</html>"), "the link was not replaced")
    done = report(binary, top, "4711", top, status=1)
    expect(str(top) in done.stderr, f"no path in {done.stderr!r}")
    done = report(binary, top, "4711", "-")
    expect(done.stdout == link.read_text(), "stdout has another page")
    done = report(binary, top, "9999", top / "none.html", status=1)
    expect(not (top / "none.html").exists(), "a page of nothing")
    expect(sorted(path.name for path in top.glob(".*")) == [], "something was left beside the page")


def report(binary, top, job, file, status=0):
    command = [binary, "report", job, "-o", f"RunDir={top}/run", f"--html={file}"]
    command += ["--stored"] if job == STORED else ["-o", f"UsageLog={top}/usage.jsonl"]
    environment = {**os.environ, "TZ": ZONE, "PATH": f"{top}/bin:{os.environ['PATH']}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    expect(done.returncode == status, f"{' '.join(map(str, command))} has ended with {done.returncode}: {done.stderr}")
    return done


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY")
    options = parser.parse_args()
    try:
        import selenium  # noqa: F401
    except ImportError:
        print("python3-selenium is missing")
        return LACKS
    if not os.access("/usr/bin/chromedriver", os.X_OK):
        print("chromedriver is missing")
        return LACKS
    failed = count = 0
    with tempfile.TemporaryDirectory(prefix="jobfence-browser.") as top:
        top = Path(top)
        (top / "usage.jsonl").write_text("".join(json.dumps(one) + "\n" for one in log()))

        (top / "usage.jsonl.series").write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in series()))
        stored(top)

        def keep(name, data):
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / name).write_bytes(data)

        def check(name, body):
            nonlocal failed, count
            count += 1
            try:
                more = body()
                print(f"ok   {name}" + (f"  ({more})" if more else ""))
            except Untrue as error:
                failed += 1
                print(f"     {error}\nFAIL {name}")

        check("files", lambda: files(options.bin, top))
        browser = Browser(top)
        try:
            for job, holds in ("4711", of_job), ("4712", of_killed), ("4713", of_unknown), ("4715", of_many), (STORED, of_stored):
                page = top / f"{job}.html"
                report(options.bin, top, job, page)
                for width in NARROW, MIDDLE, WIDE:
                    for scheme in "light", "dark":
                        def body(page=page, width=width, scheme=scheme, holds=holds):
                            holds(look(browser, page, width, scheme), browser.run(DRAWN), browser.run(ROWS))
                            picture = browser.command("Page.captureScreenshot", captureBeyondViewport=True)
                            keep(f"{page.stem}-{width}-{scheme}.png", base64.b64decode(picture["data"]))
                        check(f"job {job}, {width} pixels, {scheme}", body)
                check(f"job {job}, printed", lambda page=page: f"{printed(browser, page, keep)} pages")
            for by in "account", "user", "node":
                page = summary(options.bin, top, by)
                for width in NARROW, MIDDLE, WIDE:
                    for scheme in "light", "dark":
                        def body(page=page, width=width, scheme=scheme):
                            of_summary(look(browser, page, width, scheme))
                            picture = browser.command("Page.captureScreenshot", captureBeyondViewport=True)
                            keep(f"{page.stem}-{width}-{scheme}.png", base64.b64decode(picture["data"]))
                        check(f"all jobs by {by}, {width} pixels, {scheme}", body)
                check(f"all jobs by {by}, printed", lambda page=page: f"{printed(browser, page, keep)} pages")
        finally:
            browser.driver.quit()
    print(f"\n{count - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
