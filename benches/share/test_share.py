#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""That the trace has its shape, that sums are right, and that the bench runs: a tiny one, in seconds. test_share.py [--bin BIN]"""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from xml.etree import ElementTree

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import chart  # noqa: E402
import figures  # noqa: E402
import shapes  # noqa: E402

BIN = HERE.parents[1] / "target/debug/jobfence"


def shape(**other):
    return shapes.Shape(**{"owners": 3, "reserved": 1000, "seconds": 300, "costs": {"a": 0.2, "b": 0.5}, "memory": {"a": 50, "b": 70}} | other)


class Trace(unittest.TestCase):
    def test_a_seed_says_all(self):
        self.assertEqual(shapes.window(shape(), 7), shapes.window(shape(), 7))
        self.assertNotEqual(shapes.window(shape(), 7), shapes.window(shape(), 8))

    def test_owners_use_their_shares(self):
        for actions in shapes.window(shape(), 7):
            self.assertEqual(actions, sorted(actions, key=lambda one: one["at"]))
            units = sum(shape().costs[one["kind"]] for one in actions if one["do"] == "unit")
            touched, has, before, mean = 0, 0, 0.0, 0.0
            for one in actions:
                mean, before = mean + has * (one["at"] - before), one["at"]
                touched += max(one.get("mib", has) - has, 0)
                has = one.get("mib", has)
            self.assertAlmostEqual((units + touched * shapes.TOUCH) / 300, 0.60, delta=0.03)
            self.assertAlmostEqual((mean + has * (300 - before)) / 300 + 0.60 * 60 / 2, 190, delta=15)
            self.assertEqual(max(one.get("mib", 0) for one in actions), 900)

    def test_an_owner_has_room_for_its_unit(self):
        self.assertLess(shape(reserved=230).most() + 70 + 10, 230)

    def test_all_owners_need_their_reserve_at_once_now_and_then(self):
        first, second = ([one["at"] for one in actions if one["do"] == "grow"] for actions in shapes.window(shape(), 7)[:2])
        self.assertEqual(first[1], second[1])
        self.assertNotEqual(first[2], second[2])


def unit(number, kind, cpu, wall, begin=100.0, status=0):
    return {"do": "unit", "number": number, "kind": kind, "cpu": cpu, "wall": wall, "begin": begin, "status": status}


def window(owners, **other):
    return {"begin": 100.0, "seconds": 10, "owners": owners, "units": [], "ends": [], "refused": [], "samples": [[1, 190, 0]], "scavengers": 0, "hold": 0.1} | other


NODE = {"costs": {"a": 1.0, "b": 2.0}, "cpus": 1, "mib": 1200, "owners": 1, "reserved": 1000, "scavengers": 1, "grant": 64, "release": "0",
        "version": 2}


def said():
    grow = {"do": "grow", "number": 2, "wall": 0.5, "longest": 0.02}
    without = window([[unit(0, "a", 1.0, 1.0), unit(1, "b", 3.0, 3.1), grow, {"ended": True, "cpu": 6.0}]])
    late = unit(3, "a", 1.0, 1.0, begin=109.5)
    beside = window([[unit(0, "a", 1.1, 2.0), unit(1, "b", 3.0, 3.1), grow | {"wall": 0.75}, {"ended": True, "cpu": 6.1}]],
                    units=[unit(0, "b", 4.0, 4.0), unit(0, "a", 1.0, 1.0, status=-9), late],
                    ends=[{"why": "hold", "cpu": 5.0, "job": "1"}, {"why": "window", "cpu": 3.0, "job": "2"}], samples=[[1, 190, 200], [9, 800, 0]])
    return {"node": NODE, "windows": [without, beside]}


class Sums(unittest.TestCase):
    def test_work_is_what_has_ended_in_time(self):
        sums = figures.sums(said())
        # A unit costs what it costs an owner without scavengers.
        self.assertEqual((sums["alone"], sums["beside"], sums["scavenged"], sums["work"]), (4.0, 4.0, 3.0, 1.75))
        self.assertEqual(sums["units"], [2, 3])
        self.assertEqual((sums["share"], sums["memory"], sums["lost"]), (0.6, 0.19, 0.5))

    def test_owners_are_compared_unit_by_unit(self):
        sums = figures.sums(said())
        self.assertAlmostEqual(sums["cpu"], 4.1 / 4.0)
        self.assertAlmostEqual(sums["slower"], 1.5)
        self.assertEqual((sums["wall"][0][2], sums["wall"][1][0], sums["back"]), (3.1, 2.0, [0.25]))
        self.assertEqual(sums["longest"], [0.02, 0.02])
        self.assertEqual((sums["owners"], sums["failed"], sums["ended"]["hold"], sums["ended"]["own"]), (0, 1, 1, 0))

    def test_an_owner_that_fails_is_seen(self):
        given = said()
        given["windows"][1]["refused"].append("owner0 was killed by the kernel")
        given["windows"][0]["owners"][0][1]["status"] = 1
        self.assertEqual(figures.sums(given)["owners"], 2)

    def test_the_picture_has_both(self):
        given = said()
        picture = ElementTree.fromstring(chart.drawn(given, figures.sums(given)))
        self.assertIn("1.75", [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")])


    def test_a_machine_that_does_nothing_in_time(self):
        given = said()
        for one in given["windows"]:
            one |= {"begin": 0.0, "samples": []}
        sums = figures.sums(given)
        self.assertEqual((sums["alone"], sums["work"]), (0.0, 0.0))
        with contextlib.redirect_stdout(io.StringIO()):
            figures.show(sums)
        ElementTree.fromstring(chart.drawn(given, sums))


PAGE = HERE.parents[1] / "docs/performance.md"


@unittest.skipUnless(PAGE.is_file(), "the pages are not here")
class Page(unittest.TestCase):
    """docs/pictures/share.svg says what the page beside it says, in the words of today."""

    @staticmethod
    def texts(picture):
        return [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]

    def setUp(self):
        self.shown = self.texts(ElementTree.parse(PAGE.parent / "pictures/share.svg"))

    def test_its_figures_are_those_of_the_table(self):
        page = PAGE.read_text().split("## A node with scavengers")[1].split("\n## ")[0]
        work, bound = (next(line for line in page.splitlines() if line.startswith(f"| {name} |")).split("|")[2].strip()
                       for name in ("work done, times without", "all the CPU time there is"))
        self.assertIn(work, self.shown)
        self.assertIn(f"all the CPU time there is: {bound}", self.shown)

    def test_its_words_are_those_of_today(self):
        def words(texts):
            return [re.sub(r"[\d.]+", "N", text) for text in texts]
        given = said()
        self.assertEqual(words(self.shown), words(self.texts(ElementTree.fromstring(chart.drawn(given, figures.sums(given))))))


TINY = (sys.executable, "-B", HERE.parent / "share.py", "--minutes", "0.2", "--windows", "2", "--calibrate", "1", "--cpus", "2", "--memory", "600",
        "--weight", "1")


def left(pid):
    """What a run has not removed."""
    return [path for pattern in ("", "*/") for path in Path("/sys/fs/cgroup").glob(f"{pattern}jobfence-share-{pid}*")]


@unittest.skipIf(os.geteuid() != 0, "needs root")
class Runs(unittest.TestCase):
    def test_a_tiny_one(self):
        with tempfile.TemporaryDirectory() as directory:
            kept, picture = Path(directory) / "kept", Path(directory) / "picture"
            done = subprocess.run([*TINY, "--bin", BIN, "--keep", kept, "--chart", picture], capture_output=True, text=True, timeout=1200, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            found = json.loads(kept.read_text())
            ElementTree.parse(picture)
        without, beside = found["windows"]
        self.assertEqual((without["scavengers"], without["units"], without["ends"]), (0, [], []))
        self.assertTrue(beside["ends"], "scavengers were there")
        for what in "unit", "grow":
            self.assertEqual(figures.of_owners(without, what).keys(), figures.of_owners(beside, what).keys())
        self.assertTrue(figures.of_owners(without, "unit"))
        self.assertEqual(figures.sums(found)["owners"], 0, done.stdout)
        self.assertIn("work done on the node, times without", done.stdout)
        self.assertEqual(left(found["pid"]), [])

    def test_one_that_is_ended_leaves_nothing(self):
        for number in signal.SIGTERM, signal.SIGINT:
            with self.subTest(number), subprocess.Popen([*TINY, "--bin", BIN], stderr=subprocess.PIPE, text=True) as process:
                process.stderr.readline()  # the second window begins, with scavengers
                time.sleep(2)
                was, places = left(process.pid), self.places(process.pid)
                process.send_signal(number)
                self.assertEqual((process.wait(300), process.stderr.read()), (128 + number, ""))
                self.assertTrue(places)
                self.assertEqual((left(process.pid), [place for place in places if place.exists()]), ([], []), was)

    def places(self, pid):
        """The directory of a run."""
        said = subprocess.run(["ps", "-o", "args=", "--ppid", str(pid)], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        return [Path(word).parent for word in said if word.endswith("/jobfence.conf")]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bin"]:
        BIN = Path(sys.argv[2]).resolve()
        del sys.argv[1:3]
    unittest.main()
