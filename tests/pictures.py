#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The pictures of docs/pictures, from a real run: pictures.py DIRECTORY, which is what the case 'pictures' of tests/slurm has kept.

The words of each picture must be those that the programs say today. Its figures are those of the run from which it was made. With
JOBFENCE_RENEW=1 the pictures are made again; `make pictures` runs the case in its virtual machine, and then this. A picture is SVG, with
its text as text, in the colours that the reader's browser prefers.
"""

import html
import json
import os
import re
import sys
import tempfile
import textwrap
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
TOP = Path(__file__).resolve().parents[1]
PICTURES = TOP / "docs/pictures"

# What each shows: its title, and what it has for a reader who does not see it.
SHOWN = {
    "run": ("jobfence run", "A terminal. Two commands are run in a fence of half a CPU and 200 MiB. The first uses the CPU time "
            "that it may have. The second takes too much memory and is killed. A card after each says what it used."),
    "card": ("A card in the output of a job", "A terminal with the output of a Slurm job: why a process was killed, and a card with "
             "bars of the CPU time and the memory that the job used of its grant, and what to ask for next time."),
    "top": ("jobfence top", "A terminal with a table of the jobs on a node: for each its use of CPU time and memory, with bars of its grant."),
    "check": ("jobfence check", "A terminal. jobfence check says its verdict, a job would be fenced, and line by line what it found on a node."),
    "report": ("A page of jobfence report --html", "A page in a browser about a job: bars of what it used of its grant, its steps, and "
               "what to ask for next time."),
}
WIDTH = 100  # a longer line goes on in the next one
CELL, ROW, EDGE = 8.4, 20, 16  # of a character, a line and the margin, in pixels
PAGE = 900  # the width of the page
STYLE = """
:root { --back: #ffffff; --text: #1f2328; --line: #d0d7de; --red: #b3261e; --brown: #7a4d00 }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --text: #e6edf3; --line: #3d444d; --red: #ff8a80; --brown: #e3b341 } }
rect.back { fill: var(--back); stroke: var(--line) } rect.bar { fill: var(--text) }
text { fill: var(--text); white-space: pre; font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", "DejaVu Sans Mono", monospace }
.bold { font-weight: 700 } .red { fill: var(--red) } .brown { fill: var(--brown) } .reverse { fill: var(--back) }
""".strip()

# What programs ask for by its number among 256 colours, as pyte says it, and what is readable on both backs.
COLOURS = {"ff0000": "red", "ffff00": "brown"}

# What no two runs have in common: bars, numbers, and their units, which change with the numbers.
FIGURE = re.compile(r"[█░]+|\d+(?:[.,:-]\d+)*(?:T[\d:.]+Z)?")
UNIT = re.compile(r"\bN (?:B|KiB|MiB|GiB|ms|s|min|h)(?![\w/])")
# A job can do this or not, as busy as the machine is.
MAY_BE = re.compile(r"waited for|page cache|yet to be written|in swap|made room|Held back|held the job back|or ask for more CPUs|by the CPU quota; the bar|^all files read ")


def words(lines):
    """The lines without figures, each once; a blank one says nothing."""
    found = set()
    for line in lines:
        text = UNIT.sub("N", FIGURE.sub("N", line))
        text = " ".join(re.sub(r"\bN(?: N)+\b", "N", " ".join(text.split())).split())
        if text and not MAY_BE.search(text):
            found.add(text)
    return found


# ----------------------------------------------------------------------------------------
# A terminal


def screen_of(name, taken):
    """The lines of a terminal: each a list of characters with their colours, as pyte reads what the programs have sent."""
    import pyte

    is_screen = name == "top"  # drawn at places of the terminal; the others only print
    lines = []
    for command, output in taken["typed"]:
        lines += [[]] * bool(lines) + [[(c, "bold") for c in command]]
        screen = pyte.Screen(taken["columns"], taken["lines"]) if is_screen else pyte.Screen(1000, output.count("\n") + 2)
        screen.set_mode(pyte.modes.LNM)
        # Where it goes back to the shell, the screen is gone.
        pyte.Stream(screen).feed(output.split("\x1b[?1049l")[0])
        drawn = [[(cell.data, style(cell)) for _, cell in sorted(row.items())] for _, row in sorted(full(screen).items())]
        while drawn and not said(drawn[-1]):
            drawn.pop()
        lines += [stripped(line) for line in drawn]
    return lines


def full(screen):
    """Every cell of the screen, also those that nobody has written to."""
    return {y: {x: screen.buffer[y][x] for x in range(screen.columns)} for y in range(screen.lines)}


def style(cell):
    if cell.reverse:
        return "reverse"
    return COLOURS.get(cell.fg) or ("bold" if cell.bold else "")


def said(line):
    return "".join(c for c, _ in line).rstrip()


def stripped(line):
    return line if any(kind == "reverse" for _, kind in line) else line[: len(said(line))]


def in_rows(line):
    """One line in rows of the picture, broken between words."""
    text = said(line)
    if len(line) <= WIDTH:
        return [line]
    rows, at = [], 0
    for row in textwrap.wrap(text, WIDTH, drop_whitespace=True, subsequent_indent="    ", replace_whitespace=False):
        begin = text.index(row.strip(), at)
        at = begin + len(row.strip())
        indent = [(" ", "")] * (len(row) - len(row.lstrip())) if rows else line[:begin]
        rows.append(indent + line[begin:at])
    return rows


def runs(row):
    """Neighbours of one style."""
    found = []
    for character, kind in row:
        if found and found[-1][0] == kind:
            found[-1][1].append(character)
        else:
            found.append((kind, [character]))
    return [(kind, "".join(characters)) for kind, characters in found]


def terminal(name, lines):
    rows, texts = 0, []
    for line in lines:
        spans = []
        for row in in_rows(line):
            y = EDGE + ROW * rows + 15
            if any(kind == "reverse" for kind, _ in runs(row)):
                texts.append(f'<rect class="bar" x="{EDGE - 4}" y="{y - 15}" width="{CELL * len(row) + 8:.0f}" height="{ROW}"/>')
            inner = "".join(f'<tspan class="{kind}">{html.escape(text, quote=False)}</tspan>' if kind else html.escape(text, quote=False)
                            for kind, text in runs(row))
            length = f' textLength="{CELL * len(row):.0f}"' if row else ""
            spans.append(f'<tspan x="{EDGE}" y="{y}"{length}>{inner}</tspan>')
            rows += 1
        # The characters of a line that is broken are one text.
        texts.append(f'<text xml:space="preserve">{"".join(spans)}</text>')
    width = EDGE * 2 + CELL * max(80, *(len(row) for line in lines for row in in_rows(line)))
    return svg(name, round(width), EDGE * 2 + ROW * rows, STYLE, *texts)


def svg(name, width, height, css, *parts):
    title, described = SHOWN[name]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 1} {height + 1}" width="{width + 1}" height="{height + 1}" role="img"'
        f' aria-labelledby="{name}-title {name}-text">',
        f'<title id="{name}-title">{html.escape(title)}</title>', f'<desc id="{name}-text">{html.escape(described)}</desc>',
        f"<style>{css}</style>", f'<rect class="back" x=".5" y=".5" width="{width}" height="{height}" rx="8"/>', *parts, "</svg>", "",
    ])


def lines_of(picture):
    """The lines of a picture of a terminal."""
    space = "{http://www.w3.org/2000/svg}"
    for text in ElementTree.parse(picture).iter(f"{space}text"):
        yield " ".join("".join(row.itertext()) for row in text.findall(f"{space}tspan"))


# ----------------------------------------------------------------------------------------
# A page


class Texts(HTMLParser):
    """The texts of a page, but not its style, and without what is only there if a figure of that very run is not zero."""

    UNSEEN = ("style", "title", "desc", "details")
    BY_CHANCE = ("Held back", "Left out, ")

    def __init__(self, page):
        super().__init__()
        self.texts, self.hidden = [], 0
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.hidden += tag in self.UNSEEN

    def handle_endtag(self, tag):
        self.hidden -= tag in self.UNSEEN

    def handle_data(self, data):
        if not self.hidden and not data.startswith(self.BY_CHANCE) and "by the CPU quota" not in data:
            self.texts.append(data)


def page(name, source):
    """The page itself within a picture: its text stays text, and its colours follow the reader."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    with tempfile.TemporaryDirectory(prefix="jobfence-pictures-") as top:
        for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={top}"):
            options.add_argument(option)
        driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        try:
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": PAGE, "height": 600, "deviceScaleFactor": 1, "mobile": False})
            driver.get(source.resolve().as_uri())
            css, body, height = driver.execute_script(
                "return [document.querySelector('style').textContent, new XMLSerializer().serializeToString(document.body),"
                " document.body.scrollHeight]")
        finally:
            driver.quit()
    css += "rect.back { fill: var(--back); stroke: var(--line) }"
    return svg(name, PAGE, height + EDGE, css, f'<foreignObject x="1" y="1" width="{PAGE - 1}" height="{height + EDGE - 1}">{body}</foreignObject>')


# ----------------------------------------------------------------------------------------


def compared(name, taken):
    """What the picture has and nobody says today, and the reverse; with JOBFENCE_RENEW=1 after it was made again."""
    picture, is_page = PICTURES / f"{name}.svg", (taken / f"{name}.html").is_file()
    if is_page:
        today = words(Texts((taken / f"{name}.html").read_text()).texts)
    else:
        lines = screen_of(name, json.loads((taken / f"{name}.json").read_text()))
        today = words(map(said, lines))
    if os.environ.get("JOBFENCE_RENEW") == "1":
        PICTURES.mkdir(exist_ok=True)
        picture.write_text(page(name, taken / f"{name}.html") if is_page else terminal(name, lines))
    shown = words(Texts(picture.read_text()).texts if is_page else lines_of(picture))
    return [*(f"only in the picture: {line}" for line in sorted(shown - today)), *(f"not in it: {line}" for line in sorted(today - shown))]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.split("\n", maxsplit=1)[0])
    taken, failed = Path(sys.argv[1]), 0
    for name in SHOWN:
        try:
            found = compared(name, taken)
        except ImportError as error:
            print(f"skip  pictures  0.0 s\n     needs {error.name}\n0 passed, 0 failed, 1 skipped")
            return int(os.environ.get("CI") == "true")
        print(f"{'FAIL' if found else 'ok'}  picture_{name}  0.0 s", *(f"     {line}" for line in found), sep="\n")
        failed += bool(found)
    if failed:
        print("     make them again with: make pictures")
    print(f"{len(SHOWN) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
