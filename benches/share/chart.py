# SPDX-License-Identifier: GPL-2.0-or-later
"""A picture of one run: the work done, and the memory of the node in a window with scavengers. SVG, in the colours of docs/pictures."""

import html

WIDTH, HEIGHT = 900, 330
TITLE = "A node with and without scavengers"
TEXT = ("Left: two bars, of the work done on a node without scavengers and with them, of which a part is the scavengers', and what all of the "
        "CPU time would be. Right: the memory of the node in the course of a window with scavengers. Owners use a small part of what they "
        "reserved, and scavengers some of the rest. When owners need what they reserved, they have it.")
STYLE = """
:root { --back: #ffffff; --text: #1f2328; --line: #d0d7de; --owner: #4c6f9c; --scavenger: #b58a2e }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --text: #e6edf3; --line: #3d444d; --owner: #6d94c5; --scavenger: #d9ac4b } }
rect.back { fill: var(--back); stroke: var(--line) } .owner { fill: var(--owner) } .scavenger { fill: var(--scavenger) }
text { fill: var(--text); font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", "DejaVu Sans Mono", monospace }
.bold { font-weight: 700 } .middle { text-anchor: middle } .end { text-anchor: end } line { stroke: var(--text) } .bound { stroke-dasharray: 4 3 }
""".strip()
TOP, BOTTOM = 70, 270  # of both charts
BARS, PLACE = ((40, "without"), (170, "with")), (400, 870)


def text(x, y, words, kind=""):
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.0f}" y="{y:.0f}"{of_kind}>{html.escape(words)}</text>'


def bars(sums):
    all_of_it = sums["alone"] / max(sums["share"], 0.01)
    most = max(all_of_it, sums["beside"] + sums["scavenged"], 0.001)
    parts = [text(24, 34, "work done", "bold")]
    for (x, name), owners, scavengers in zip(BARS, (sums["alone"], sums["beside"]), (0, sums["scavenged"])):
        y = BOTTOM
        for amount, kind in (owners, "owner"), (scavengers, "scavenger"):
            height = (BOTTOM - TOP) * amount / most
            y -= height
            parts.append(f'<rect class="{kind}" x="{x}" y="{y:.1f}" width="70" height="{height:.1f}"/>')
        parts.append(text(x + 78, y + 14, f"{sums['work'] if name == 'with' else 1:.2f}", "bold"))
        parts.append(text(x + 35, BOTTOM + 20, name, "middle"))
    y = BOTTOM - (BOTTOM - TOP) * all_of_it / most
    parts += [f'<line x1="24" y1="{BOTTOM}" x2="290" y2="{BOTTOM}"/>', f'<line class="bound" x1="24" y1="{y:.1f}" x2="290" y2="{y:.1f}"/>',
              text(290, y - 6, f"all the CPU time there is: {1 / max(sums['share'], 0.01):.2f}", "end")]
    return [*parts, '<rect class="owner" x="24" y="303" width="12" height="12"/>', text(42, 314, "owners"),
            '<rect class="scavenger" x="124" y="303" width="12" height="12"/>', text(142, 314, "scavengers")]


def course(window, node):
    """Memory in the course of a window, and what owners have reserved of it."""
    left, right = PLACE
    samples = [sample for sample in window["samples"] if sample[0] <= window["seconds"]]
    xs = [left + (right - left) * at / window["seconds"] for at, _, _ in samples]

    def height(mib):
        return BOTTOM - (BOTTOM - TOP) * min(mib / node["mib"], 1)
    owners, both = [height(one) for _, one, _ in samples], [height(one + other) for _, one, other in samples]

    def area(kind, upper, lower):
        points = [*zip(xs, upper), *zip(reversed(xs), reversed(lower))]
        return f'<polygon class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'
    reserved = height(node["owners"] * node["reserved"])
    parts = [text(left - 40, 34, "memory in use on the node, with scavengers", "bold")] if samples else []
    parts += [area("owner", owners, [BOTTOM] * len(xs)), area("scavenger", both, owners)] if samples else []
    for mib, y in ((0, BOTTOM), (node["mib"], TOP)):
        parts.append(text(left - 8, y + 5, f"{mib} MiB" if mib else "0", "end"))
    parts += [f'<line x1="{left}" y1="{BOTTOM}" x2="{right}" y2="{BOTTOM}"/>',
              f'<line class="bound" x1="{left}" y1="{reserved:.1f}" x2="{right}" y2="{reserved:.1f}"/>',
              text(left + 8, reserved - 6, "reserved by owners"), text(left, BOTTOM + 20, "0"),
              text(right, BOTTOM + 20, f"{window['seconds']:.0f} s", "end")]
    return parts


def drawn(said, sums):
    window = said["windows"][-1]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 1} {HEIGHT + 1}" width="{WIDTH + 1}" height="{HEIGHT + 1}" role="img"'
        ' aria-labelledby="share-title share-text">',
        f'<title id="share-title">{html.escape(TITLE)}</title>', f'<desc id="share-text">{html.escape(TEXT)}</desc>', f"<style>{STYLE}</style>",
        f'<rect class="back" x=".5" y=".5" width="{WIDTH}" height="{HEIGHT}" rx="8"/>', *bars(sums), *course(window, said["node"]), "</svg>", "",
    ])
