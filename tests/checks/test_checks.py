# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests of the runner of tests: python3 -B -m unittest tests.checks.test_checks"""

import contextlib
import io
import os
import re
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))
import leases  # noqa: E402
from checks import crates, machine, output, pool, slices, times  # noqa: E402
from contract import cases, harness  # noqa: E402
from checks.groups import GROUPS, Build, Group, has_controller  # noqa: E402

CARGO = """\
running 3 tests
test one ... ok
test two ... FAILED
test three ... ok

failures:

---- two stdout ----

thread 'two' (123) panicked at tests/a.rs:1:2:
assertion `left == right` failed: why
  left: 1
 right: 2
note: run with `RUST_BACKTRACE=1`

test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
"""
OURS = """\
cases: 3
ok   first  1.5 s
FAIL second  2.0 s
     the reason
     a line
     another
     a fourth
skip third  0.1 s  (no disk)
1 passed, 1 failed, 1 skipped
"""


class Output(unittest.TestCase):
    def test_counts(self):
        self.assertEqual(output.counts(CARGO + OURS), [3, 2, 1])

    def test_how_far(self):
        self.assertEqual(output.far(CARGO + OURS), (6, 6))
        self.assertEqual(output.far(OURS.split("FAIL")[0]), (1, 3))

    def test_seconds(self):
        self.assertEqual(output.seconds(OURS), {"first": 1.5, "second": 2.0, "third": 0.1})

    def test_three_lines_of_each_failure(self):
        cargos, ours = output.failures(CARGO + OURS)
        self.assertEqual(cargos.splitlines()[1:], ["assertion `left == right` failed: why", "  left: 1", " right: 2"])
        self.assertEqual(ours, "FAIL second  2.0 s\n     the reason\n     a line\n     another")

    def test_a_failure_that_says_nothing_is_named(self):
        self.assertEqual(output.failures("test alone ... FAILED\n"), ["FAIL alone"])


IN_CGROUPS = {"controllers": ("cpu",)}


def waits(name):
    """A shell's wait for this file. It fails where there is none after a minute."""
    return f"for try in $(seq 600); do [ -e {name} ] && break; sleep 0.1; done; [ -e {name} ]"


class InAPool(unittest.TestCase):
    def setUp(self):
        self.place = tempfile.TemporaryDirectory()
        os.environ["JOBFENCE_CACHE"] = str(Path(self.place.name) / "cache")
        # These pools are no company for the check that runs this test.
        self.of_leases, leases.PLACE = leases.PLACE, str(Path(self.place.name) / "leases")

    def tearDown(self):
        del os.environ["JOBFENCE_CACHE"]
        leases.PLACE = self.of_leases
        self.place.cleanup()

    def run_groups(self, *groups):
        made = pool.Pool(Path(self.place.name), Path(self.place.name), strict=True)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            made.run(groups)
        return made, said.getvalue()

    def of(self, script, **options):
        group = Group("a group", (("sh", "-c", script),), **options)
        made, said = self.run_groups(group)
        return made.results[group], said

    def test_a_group_that_passes_keeps_its_times(self):
        result, _ = self.of("echo 'cases: 1'; echo 'ok   one  2.5 s'; echo '1 passed, 0 failed, 0 skipped'")
        self.assertEqual((result.verdict, result.counts), ("pass", [1, 0, 0]))
        self.assertEqual(times.read()["a group"]["cases"], {"one": 2.5})

    def test_a_status_is_a_failure_whatever_is_said(self):
        result, _ = self.of("echo '1 passed, 0 failed, 0 skipped'; exit 3")
        self.assertEqual((result.verdict, result.counts), ("FAIL", [1, 1, 0]))

    def test_a_failure_that_is_said_is_one_whatever_the_status(self):
        self.assertEqual(self.of("echo '1 passed, 1 failed, 0 skipped'")[0].verdict, "FAIL")

    def test_a_process_that_stays_fails_its_group_and_is_ended(self):
        grace, machine.GRACE = machine.GRACE, 0.2
        try:
            result, said = self.of("setsid sleep 98765 >/dev/null 2>&1 & sleep 0.2")
        finally:
            machine.GRACE = grace
        self.assertEqual(result.verdict, "FAIL")
        self.assertIn("left behind: process", said)
        self.assertIn("sleep 98765", said)
        pid = said.split("left behind: process ")[1].split()[0]
        with contextlib.suppress(ChildProcessError):  # it may be buried already
            os.waitpid(int(pid), 0)

    def test_the_dead_are_buried_while_their_group_runs(self):
        looks, pool.LOOKS = pool.LOOKS, 0.2
        script = """pid=$(setsid sleep 98765 >/dev/null 2>&1 & echo $!)
            kill -9 $pid
            for try in $(seq 300); do [ -e /proc/$pid ] || exit 0; sleep 0.1; done; exit 1"""
        try:
            self.assertEqual(self.of(script)[0].verdict, "pass")
        finally:
            pool.LOOKS = looks

    def test_what_hangs_is_ended(self):
        result, said = self.of("sleep 98765", seconds=0.2)
        self.assertEqual(result.verdict, "FAIL")
        self.assertIn("not finished after 0.2 s", said)

    def test_what_is_lacking_fails_where_all_must_run(self):
        self.assertEqual(self.of("true", programs=("no-such-program",))[0].verdict, "FAIL")
        self.assertEqual(self.of("true", given="NO_SUCH_VARIABLE")[0].verdict, "skip")

    def test_some_follow_others(self):
        first = Group("first", (("sh", "-c", "sleep 0.3; touch first"),))
        second = Group("second", (("sh", "-c", "test -e first && sleep 0.3 && touch second"),), about=999, after=("first", "who does not run"))
        last = Group("last", (("test", "-e", "second"),), about=9999, is_last=True)
        made, _ = self.run_groups(first, second, last)
        self.assertEqual([made.results[group].verdict for group in (first, second, last)], ["pass"] * 3)

    def test_what_several_need_is_built_once_and_one_after_the_other_in_its_place(self):
        once = Build("once", ("sh", "-c", "mkdir place && sleep 0.3 && mkdir once && rmdir place"), "place")
        next_one = Build("next", ("sh", "-c", "mkdir place && rmdir place"), "place")
        groups = [Group(name, (("test", "-d", "once"),), builds=builds) for name, builds in (("one", (once,)), ("two", (once, next_one)))]
        made, _ = self.run_groups(*groups)
        self.assertEqual([made.results[group].verdict for group in groups], ["pass", "pass"])

    def test_what_cannot_be_built_fails_each_that_needs_it_with_its_words(self):
        broken = Build("broken", ("sh", "-c", "echo error: no such crate; exit 101"), "place")
        groups = [Group(name, (("true",),), builds=(broken,)) for name in ("one", "two")]
        other = Group("other", (("true",),))
        made, _ = self.run_groups(*groups, other)
        self.assertEqual([made.results[group].verdict for group in (*groups, other)], ["FAIL", "FAIL", "pass"])
        for group in groups:
            self.assertIn("error: no such crate\n", made.results[group].text)

    @unittest.skipUnless(has_controller("cpu"), "no cgroups")
    def test_nothing_begins_that_would_hold_up_one_that_is_alone(self):
        """It waits for the one that runs. Meanwhile another that may not be beside it does not begin, and one without cgroups does."""
        running = Group("running", (("sh", "-c", f"touch running; {waits('harmless')}"),), about=999, units=1, **IN_CGROUPS)
        it = Build("it", ("sh", "-c", waits("running")), "place")
        alone = Group("alone", (("sh", "-c", "! test -e held && touch alone"),), builds=(it,), units=1, **IN_CGROUPS, is_alone_on_host=True)
        held_up = Group("held up", (("sh", "-c", "touch held; test -e alone"),), builds=alone.builds, units=1, **IN_CGROUPS)
        harmless = Group("harmless", (("touch", "harmless"),), builds=alone.builds, units=1)
        groups = running, alone, held_up, harmless
        made, _ = self.run_groups(*groups)
        self.assertEqual([made.results[group].verdict for group in groups], ["pass"] * 4)

    @unittest.skipUnless(has_controller("cpu"), "no cgroups")
    def test_one_that_is_alone_on_the_host_has_guests_beside_it(self):
        alone = Group("alone", (("sh", "-c", f"touch began; {waits('guest')}; touch ended"),), units=1, **IN_CGROUPS, is_alone_on_host=True)
        guest = Group("vm one", (("sh", "-c", f"{waits('began')}; touch guest"),), units=1, **IN_CGROUPS)
        other = Group("other", (("test", "-e", "ended"),), about=999, units=1, **IN_CGROUPS)
        made, _ = self.run_groups(other, alone, guest)
        self.assertEqual([made.results[group].verdict for group in (alone, guest, other)], ["pass"] * 3)

    def test_a_file_that_stays_is_known_with_what_ran(self):
        grace, machine.GRACE = machine.GRACE, 0.2
        try:
            watch = machine.Watch()
            with tempfile.TemporaryDirectory(prefix="jobfence-left-") as place:
                watch.look(["a group"])
                self.assertEqual(watch.left()[f"file {place}"], ("a group",))
            self.assertNotIn(f"file {place}", watch.left())
        finally:
            machine.GRACE = grace


    @unittest.skipUnless(os.geteuid() == 0, "a lease is root's")
    def test_a_test_by_itself_is_company_and_one_of_a_check_is_not(self):
        with unittest.mock.patch.dict(os.environ, {leases.MARK: "a group"}):
            beside, of_a_check = machine.Beside(), leases.company()
            self.assertEqual((of_a_check, beside.others()), (None, 0))
            del os.environ[leases.MARK]
            by_itself = leases.company()
            self.assertEqual((by_itself.number, beside.others()), (1, 1))


class Crates(unittest.TestCase):
    """What cargo has built of others' crates, and nothing of ours."""

    def setUp(self):
        self.place = tempfile.TemporaryDirectory()
        self.addCleanup(self.place.cleanup)
        self.top = Path(self.place.name)
        given = {"JOBFENCE_CACHE": f"{self.place.name}/cache"}
        for patch in unittest.mock.patch.dict(os.environ, given), unittest.mock.patch.object(crates, "key", lambda: "k"):
            patch.start()
            self.addCleanup(patch.stop)

    def built(self):
        for name in ".fingerprint/syn-0a/lib", ".fingerprint/jobfence-1b/lib", "build/syn-0a/out/x", "deps/libsyn-0a.rlib", "deps/host-1b":
            for profile in crates.PROFILES:
                path = self.top / "one/target" / profile / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(name)
                os.utime(path, (5, 5))

    def restored(self, clone):
        crates.restore(self.top / clone)
        return sorted(str(path.relative_to(self.top / clone / "target")) for path in (self.top / clone).rglob("*") if path.is_file())

    def test_they_are_kept_for_the_next_clone_alone(self):
        self.assertEqual(self.restored("two"), [])
        self.built()
        with contextlib.redirect_stderr(io.StringIO()):
            crates.keep(self.top / "one")
        wanted = sorted(f"{profile}/{name}" for profile in crates.PROFILES
                        for name in (".fingerprint/syn-0a/lib", "build/syn-0a/out/x", "deps/libsyn-0a.rlib"))
        self.assertEqual(self.restored("two"), wanted)
        self.assertEqual((self.top / "two/target/debug/deps/libsyn-0a.rlib").stat().st_mtime, 5)
        (self.top / "three/target/debug").mkdir(parents=True)
        self.assertEqual(self.restored("three"), [])

    def test_where_nothing_can_be_kept_all_is_compiled(self):
        (self.top / "file").write_text("")
        with unittest.mock.patch.dict(os.environ, JOBFENCE_CACHE=f"{self.top}/file/below"), contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(self.restored("two"), [])
            self.built()
            crates.keep(self.top / "one")

    def test_a_broken_one_is_not_used(self):
        self.built()
        with contextlib.redirect_stderr(io.StringIO()):
            crates.keep(self.top / "one")
        (self.top / "cache/built/crates-k/debug/deps/libsyn-0a.rlib").write_text("shorter")
        self.assertEqual(self.restored("two"), [])


class Tiers(unittest.TestCase):
    def test_a_check_has_each_file_of_cargos_tests_once_and_whole(self):
        commands = [command for group in GROUPS if "check" in group.tiers for command in group.commands if command[:2] == ("cargo", "test")]
        whole = [command for command in commands if "--" not in command]
        named = [word for command in whole for before, word in zip(command, command[1:]) if before == "--test"]
        self.assertEqual(sorted(named), sorted({path.stem for path in TESTS.glob("*.rs")} | {"fuzz"}))

    def test_what_is_left_of_a_group_is_only_in_a_quick_check(self):
        names = {group.name for group in GROUPS if "quick" in group.tiers} - {group.name for group in GROUPS if "check" in group.tiers}
        self.assertEqual(names, {"hook short"})


class Slices(unittest.TestCase):
    def test_each_part_is_in_one_slice(self):
        names = [group.name for one in slices.slices() for group in one]
        self.assertEqual(len(names), len(set(names)))


class Contract(unittest.TestCase):
    """The tables of the contract say what is."""

    FOLDERS = {"slurm": "slurm", "openpbs": "pbs", "gridengine": "gridengine", "htcondor": "htcondor", "shell": None}

    def test_each_exception_names_what_is_there(self):
        common = {one.__name__ for one in harness.CASES if one.is_common}
        rows = [(case, name, why) for case, row in cases.NOT_FOR.items() for name, why in row.items()]
        rows += [(case, name, why) for name, row in cases.ONLY_FOR_A_RELEASE.items() for case, why in row.items()]
        for case, name, why in rows:
            self.assertIn(case, common)
            self.assertIn(name, self.FOLDERS)
            if self.FOLDERS[name]:
                suites = "".join(path.read_text() for path in (TESTS / self.FOLDERS[name] / "suite").glob("*.py"))
                own = set(re.findall(r"(?m)^def (\w+)\(site\)", suites)) | common
                self.assertEqual(set(re.findall(r"[a-z]+_[a-z_]+", why)) - own, set(), f"{case} of {name} names no case")


if __name__ == "__main__":
    unittest.main()
