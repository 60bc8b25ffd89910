#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The cache of images, with a builder that takes a second: test_cache.py. It needs neither network nor root."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
sys.path.insert(0, str(Path(__file__).resolve().parent))
import cache  # noqa: E402

BIG = 3 * cache.END_BYTES

# Another run: says what it does, and goes on when its stdin ends.
OTHER = """
import sys
import cache
def build(new):
    (new / "small").write_text("built")
    print("begun", flush=True)
    sys.stdin.readline()
    (new / "below").mkdir()
    (new / "below/big").write_bytes(b"x" * %d)
with cache.held("thing", sys.argv[1], build) as directory:
    print("has", (directory / "small").read_text(), flush=True)
    sys.stdin.readline()
""" % BIG


class Cache(unittest.TestCase):
    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.place = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["JOBFENCE_CACHE"] = str(self.place)
        self.built = 0

    def tearDown(self):
        self.stack.close()
        del os.environ["JOBFENCE_CACHE"]

    def other(self, key="k"):
        process = subprocess.Popen([sys.executable, "-B", "-c", OTHER, key], cwd=cache.TOP / "tests/vm", text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip

        def end():
            process.kill()
            process.communicate()
        self.stack.callback(end)
        return process

    def build(self, new):
        self.built += 1
        (new / "small").write_text("built")
        (new / "big").write_bytes(b"x" * BIG)
        (new / "link").symlink_to("small")

    def use(self, key="k"):
        with cache.held("thing", key, self.build) as directory:
            return directory

    def names(self):
        return sorted(path.name for path in (self.place / "built").iterdir())

    def test_what_was_built_is_taken(self):
        first = self.use()
        self.assertEqual(self.use(), first)
        self.assertEqual(self.built, 1)
        self.assertEqual(self.names(), ["thing-k", "thing-k.lock"])

    def test_one_builds_and_the_other_waits_and_says_so(self):
        one = self.other()
        self.assertEqual(one.stdout.readline(), "begun\n")
        two = self.other()
        self.assertIn("waiting", two.stderr.readline())
        one.stdin.write("\n")
        one.stdin.flush()
        self.assertEqual(two.stdout.readline(), "has built\n")  # and not "begun"
        # Both have it at once.
        self.assertEqual(one.stdout.readline(), "has built\n")

    def test_what_a_killed_builder_leaves_is_not_taken(self):
        one = self.other()
        self.assertEqual(one.stdout.readline(), "begun\n")
        waiting = [self.other(), self.other()]
        for each in waiting:
            self.assertIn("waiting", each.stderr.readline())
            # It ends when it has it: the one that builds may have it before the other asks again.
            each.stdin.write("\n\n")
            each.stdin.flush()
        one.send_signal(signal.SIGKILL)
        said = []
        for each in waiting:
            # One of them builds it, and no more than one.
            for line in iter(each.stdout.readline, "has built\n"):
                self.assertNotEqual(line, "", f"it has ended: {each.poll()}, {line!r}: {each.stderr.read() if not line else ''}")
                said.append(line)
        self.assertEqual(said, ["begun\n"])
        self.assertEqual(self.names(), ["thing-k", "thing-k.lock"])

    def test_a_builder_that_fails_leaves_nothing(self):
        def fails(new):
            (new / "small").write_text("half")
            raise ValueError
        with self.assertRaises(ValueError), cache.held("thing", "k", fails):
            pass
        self.assertEqual(self.names(), ["thing-k.lock"])

    def test_what_is_broken_is_built_anew(self):
        def truncated(directory):
            os.truncate(directory / "big", BIG - 1)

        def changed(directory):
            with open(directory / "big", "r+b") as file:
                file.seek(-10, os.SEEK_END)
                file.write(b"y")

        def missing(directory):
            (directory / "small").unlink()

        def half_a_manifest(directory):
            text = (directory / cache.MANIFEST).read_text()
            (directory / cache.MANIFEST).write_text(text[: len(text) // 2])

        def changed_in_the_middle(directory):
            cache.distrust(directory, without_proof=False)
            self.use()
            with open(directory / "big", "r+b") as file:
                file.seek(BIG // 2)
                file.write(b"y")
            self.use()
            cache.distrust(directory, without_proof=False)

        def nobody_knows_why(directory):
            cache.distrust(directory, without_proof=True)

        harms = truncated, changed, missing, half_a_manifest, changed_in_the_middle, nobody_knows_why
        for number, harm in enumerate(harms, 1):
            harm(self.use())
            self.use()
            self.assertEqual(self.built, number + 1, harm.__name__)

    def test_what_is_old_is_removed_but_not_what_is_in_use(self):
        for key in "ab":
            self.use(key)
        one = self.other("b")
        self.assertEqual(one.stdout.readline(), "has built\n")
        (self.place / "built/thing-a.new").mkdir()  # of a builder that was killed
        long_ago = time.time() - cache.UNUSED_SECONDS - 1
        for key in "ab":
            os.utime(self.place / f"built/thing-{key}.lock", (long_ago, long_ago))
        self.use("c")
        self.assertEqual(self.names(), ["thing-b", "thing-b.lock", "thing-c", "thing-c.lock"])
        one.kill()
        one.wait()
        self.use("c")
        self.assertEqual(self.names(), ["thing-c", "thing-c.lock"])

    def test_each_clone_keeps_its_own_and_there_are_few(self):
        keys = [str(number) for number in range(cache.KEPT + 2)]
        for age, key in enumerate(reversed(keys)):
            self.use(key)
            os.utime(self.place / f"built/thing-{key}.lock", (time.time() - 100 + age,) * 2)
        self.use(keys[0])
        self.assertEqual([name for name in self.names() if "." not in name], [f"thing-{key}" for key in keys[: cache.KEPT]])

    def test_where_it_cannot_be_written(self):
        (self.place / "file").write_text("")
        os.environ["JOBFENCE_CACHE"] = str(self.place / "file/below")
        with self.assertRaises(SystemExit):
            cache.root()


def main():
    found = unittest.main(exit=False, buffer=True).result
    failed, skipped = len(found.failures) + len(found.errors), len(found.skipped)
    print(f"{found.testsRun - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
