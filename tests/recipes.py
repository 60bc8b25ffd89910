#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The recipes of docs/usage.md for other programs that read the usage log, as printed there: recipes.py --bin FILE [NAME...].

Nothing of a site's is asked: stand-ins for Elasticsearch and for a collector of Loki's take what rsyslog sends.
"""

import argparse
import collections
import contextlib
import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP / "tests"))
from checks import plain  # noqa: E402
from checks.plain import Skip  # noqa: E402
from contract.harness import expect, expect_equal  # noqa: E402

PAGE = TOP / "docs/usage.md"
PATIENCE = 300


def block(language, word=""):
    """What the page prints in this language with this word."""
    found = [text for text in re.findall(rf"(?ms)^```{language}\n(.*?)^```$", PAGE.read_text()) if word in text]
    expect_equal(len(found), 1, f"blocks of {language} with {word!r} in {PAGE.name}")
    return found[0]


def replaced(text, *pairs):
    for old, new in pairs:
        expect_equal(text.count(old), 1, f"how often the recipe has {old}")
        text = text.replace(old, str(new))
    return text


def lines(top, count, seed, nodes=1):
    """Of a usage log as a site has it."""
    path = top / "made.jsonl"
    words = "--lines", count, "--seed", seed, "--nodes", nodes, "--days", 60, path
    subprocess.run([sys.executable, "-B", TOP / "tests/usage_log.py", *map(str, words)], check=True)
    return path.read_text().splitlines()


def until(is_so, what, said):
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        expect(time.monotonic() < deadline, f"{what}: not after {PATIENCE} s; {said()}")
        time.sleep(0.05)


class Store:
    """What Elasticsearch does here: it keeps documents by their ids, while it is up."""

    def __init__(self):
        store, self.documents, self.wrong, self.lines = self, {}, [], 0

        class Asked(http.server.BaseHTTPRequestHandler):
            def answer(self, status, value):
                text = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def do_GET(self):
                self.answer(200, {"status": "green"})

            do_HEAD = do_GET

            def do_POST(self):
                text = self.rfile.read(int(self.headers["Content-Length"])).decode()
                rows = text.splitlines()
                for action, line in zip(rows[::2], rows[1::2], strict=True):
                    action = json.loads(action)
                    if self.path != "/_bulk" or list(action) != ["index"] or sorted(action["index"]) != ["_id", "_index"]:
                        store.wrong.append((self.path, action))
                    store.lines += 1
                    store.documents[action["index"]["_id"]] = line
                self.answer(200, {"errors": False, "items": [{"index": {"status": 201}}] * (len(rows) // 2)})

            def log_message(self, *_):
                pass

        # An address of this process alone: nothing else takes the port while the server is down.
        number = os.getpid()
        self.host = f"127.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        self.handler, self.port = Asked, 0

    @contextlib.contextmanager
    def up(self):
        with http.server.HTTPServer((self.host, self.port), self.handler) as server:
            self.port = server.server_address[1]
            serving = threading.Thread(target=server.serve_forever, args=(0.05,))
            serving.start()
            try:
                yield
            finally:
                server.shutdown()
                serving.join()


RSYSLOGD = shutil.which("rsyslogd", path="/usr/sbin:/usr/bin")


@contextlib.contextmanager
def rsyslog(top):
    """By the recipe in this directory."""
    with open(top / "said", "a") as words:
        daemon = subprocess.Popen([RSYSLOGD, "-n", "-f", top / "jobfence.conf", "-i", top / "pid"],
                                  stdin=subprocess.DEVNULL, stdout=words, stderr=words)
    try:
        yield daemon
    finally:
        daemon.terminate()
        daemon.wait(PATIENCE)


def with_a_long_line(top, count):
    """One that is as long as they get."""
    all_lines = lines(top, count, 1)
    task = json.dumps({"task": 1, "sentence": "x" * 400})
    all_lines[count // 2] = all_lines[count // 2].replace('"tasks":[]', f'"tasks":[{",".join([task] * 64)}]')
    expect(len(all_lines[count // 2]) > 25_000, "the long line")
    return all_lines


def rsyslog_sends_each_line_once(top, _):
    """Over a server that is down, a restart, a log that is set aside, a line as long as they get, and a log that is read again."""
    if not RSYSLOGD or not list(Path("/usr/lib").glob("**/rsyslog/omelasticsearch.so")):
        raise Skip("needs rsyslog and rsyslog-elasticsearch")
    log, conf, said = top / "log/usage.jsonl", top / "jobfence.conf", top / "said"
    log.parent.mkdir()
    (top / "spool").mkdir()
    all_lines = with_a_long_line(top, 400)

    def add(some):
        with open(log, "a") as file:
            file.writelines(f"{line}\n" for line in some)

    def has(count):
        until(lambda: len(store.documents) >= count, f"{count} lines",
              lambda: f"there are {len(store.documents)}; rsyslog says {said.read_text()}")

    store = Store()
    add(all_lines[:100])
    with contextlib.ExitStack() as down:
        down.enter_context(store.up())
        # It looks again after half a minute otherwise.
        often = 'action.resumeRetryCount="-1"'
        conf.write_text(replaced(block("rsyslog", "omelasticsearch"), ("/var/spool/rsyslog", top / "spool"), ("/var/log/jobfence/usage.jsonl", log),
                                 ("logs.example.org", store.host), ("9200", store.port), ('usehttps="on"', 'usehttps="off"'),
                                 (often, f'{often} action.resumeInterval="1"')))
        with rsyslog(top):
            has(100)
            add(all_lines[100:200])
            has(200)
            # As jobfence does it.
            log.rename(log.with_name("usage.jsonl-20260921T141320Z"))
            add(all_lines[200:250])
            has(250)
            down.close()
            add(all_lines[250:300])
            until(lambda: "suspending" in said.read_text(), "a server that cannot be reached", said.read_text)
            with store.up():
                has(300)
    add(all_lines[300:400])
    with store.up(), rsyslog(top):
        has(400)
    (log.parent / "usage.jsonl-20260921T141320Z").rename(log)
    shutil.rmtree(top / "spool")
    (top / "spool").mkdir()
    sent = store.lines
    with store.up(), rsyslog(top):
        until(lambda: store.lines >= sent + 200, "the first lines once more", said.read_text)
    expect_equal(store.wrong, [], "what Elasticsearch 8 would refuse")
    lost, other = set(all_lines) - set(store.documents.values()), set(store.documents.values()) - set(all_lines)
    expect_equal((len(store.documents), len(lost), len(other)), (400, 0, 0), "the documents, lines that are lost, and others")


class Listener:
    """What a collector of Loki's does here: it takes messages of RFC 5424 with their octets counted (RFC 6587), over one connection."""

    MESSAGE = re.compile(r"<\d{1,3}>1 \S+T\S+ \S+ jobfence - - - ?(.*)", re.DOTALL)

    def __init__(self):
        self.socket, self.lines, self.wrong = socket.create_server(("127.0.0.1", 0)), [], []
        self.port = self.socket.getsockname()[1]

    def listen(self):
        connection = self.socket.accept()[0]
        with connection.makefile("rb") as stream:
            while True:
                count = b""
                while (octet := stream.read(1)).isdigit():
                    count += octet
                if not octet:
                    return
                message = stream.read(int(count)).decode() if octet == b" " and count else None
                found = message and self.MESSAGE.fullmatch(message)
                if not found:
                    self.wrong.append((count, octet, message))
                    return
                self.lines.append(found[1].rstrip("\n"))


def rsyslog_sends_what_loki_takes(top, _):
    """Each line is a message, also one as long as they get."""
    if not RSYSLOGD:
        raise Skip("needs rsyslog")
    listener, log, all_lines = Listener(), top / "usage.jsonl", with_a_long_line(top, 200)
    (top / "spool").mkdir()
    log.write_text("".join(f"{line}\n" for line in all_lines))
    (top / "jobfence.conf").write_text(replaced(
        block("rsyslog", "omfwd"), ("/var/spool/rsyslog", top / "spool"), ("/var/log/jobfence/usage.jsonl", log),
        ("logs.example.org", "127.0.0.1"), ("1514", listener.port)))
    listening = threading.Thread(target=listener.listen, daemon=True)
    listening.start()
    with rsyslog(top):
        until(lambda: len(listener.lines) >= 200 or listener.wrong, "all lines",
              lambda: f"there are {len(listener.lines)}; rsyslog says {(top / 'said').read_text()}")
    listening.join(PATIENCE)
    expect_equal(listener.wrong, [], "what is no message")
    expect_equal(listener.lines, all_lines, "the lines")


def duckdb_has_the_same_hours(top, command):
    """As `jobfence report --by account`."""
    try:
        import duckdb
    except ImportError as error:
        raise Skip("needs the Python package duckdb") from error
    logs = top / "logs"
    logs.mkdir()
    made = [(line, json.loads(line)) for line in lines(top, 6000, 2, 8)]
    nodes = collections.defaultdict(set)
    for _, value in made:
        nodes[value["job"]].add(value["node"])
    # As the page says it: of these the two agree.
    alone = [line for line, value in made if len(nodes[value["job"]]) == 1]
    (logs / "usage.jsonl").write_text("\n".join(alone) + "\n")
    done = subprocess.run([command, "report", "--by", "account", "--since", "100years", "--logs", logs, "--json"],
                          capture_output=True, text=True, check=False)
    expect_equal(done.returncode, 0, f"report ({done.stderr})")
    ours = {row["name"]: row for row in json.loads(done.stdout)["groups"]}
    theirs = duckdb.sql(replaced(block("sql"), ("/srv/usage-logs", logs))).fetchall()
    expect_equal({row[0] for row in theirs}, set(ours), "the accounts")
    for account, jobs, *hours in theirs:
        expect_equal(jobs, ours[account]["jobs"], f"the jobs of {account}")
        for name, found in zip(("reserved", "used", "wasted"), hours, strict=True):
            wanted = ours[account][f"cpu_hours_{name}"]
            expect(abs(found - wanted) <= 1e-4 * (1 + wanted), f"of {account} are {found} h {name}, and report has {wanted}")
    expect(len(theirs) > 10, f"{len(theirs)} accounts")


CASES = rsyslog_sends_each_line_once, rsyslog_sends_what_loki_takes, duckdb_has_the_same_hours


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    cases = [case for case in CASES if not options.names or case.__name__ in options.names]
    return plain.run(cases, "jobfence-recipes.", options.bin.resolve())


if __name__ == "__main__":
    sys.exit(main())
