# SPDX-License-Identifier: GPL-2.0-or-later
"""What the windows say together: sums, ratios and distributions, from what was found alone."""

import statistics

from tables import Goals, percentile

# What is wanted: work, times as much; of an owner's time, in parts of it; and seconds.
WORK, SLOWER, BACK = 1.8, 1.01, 1.0
# Why a scavenger ended: it was chosen by hold, the kernel chose it when the node was full, or it was at its own limit.
WHYS = {"hold": "by jobfence hold, since the node ran short", "node": "by the kernel, since the node was full",
        "own": "by the kernel, at their own limit", "unknown": "in another way"}


def ratio(first, second):
    """0, if a busy machine has done nothing in time."""
    return first / second if second else 0.0


def is_done(unit, window):
    return unit["status"] == 0 and unit["begin"] + unit["wall"] <= window["begin"] + window["seconds"]


def of_owners(window, what):
    """Each of this kind, by its owner and its number in the trace, which a pair of windows has in common."""
    return {(number, one["number"]): one for number, owner in enumerate(window["owners"]) for one in owner
            if one.get("do") == what and not one.get("is_first")}


def common(pairs, what):
    """The same action of an owner without scavengers and with them."""
    for without, beside in pairs:
        first, second = of_owners(without, what), of_owners(beside, what)
        yield from ((first[key], second[key]) for key in sorted(first) if key in second)


def sums(said):
    node, windows = said["node"], said["windows"]
    pairs = list(zip(windows[::2], windows[1::2]))
    all_units = [unit for without, _ in pairs for unit in of_owners(without, "unit").values()]
    cost = {}
    for kind, alone in node["costs"].items():
        here = [unit["cpu"] for unit in all_units if unit["kind"] == kind]
        cost[kind] = statistics.mean(here) if here else alone

    def work(units, window):
        return sum(cost[unit["kind"]] for unit in units if is_done(unit, window))
    alone = sum(work(of_owners(window, "unit").values(), window) for window, _ in pairs)
    beside = sum(work(of_owners(window, "unit").values(), window) for _, window in pairs)
    scavenged = sum(work(window["units"], window) for _, window in pairs)
    seconds = sum(window["seconds"] for window, _ in pairs)
    used = sum(line["cpu"] for window, _ in pairs for owner in window["owners"] for line in owner if "ended" in line)
    samples = [sample[1] for window, _ in pairs for sample in window["samples"] if sample[0] <= window["seconds"]]
    both = list(common(pairs, "unit"))
    grown = list(common(pairs, "grow"))
    ends = [end for _, window in pairs for end in window["ends"]]
    spent, good = sum(end["cpu"] for end in ends), sum(unit["cpu"] for _, window in pairs for unit in window["units"] if is_done(unit, window))
    failed = [unit for _, window in pairs for unit in window["units"] if unit["status"]]
    units = [unit for window in windows for unit in of_owners(window, "unit").values()]
    return {
        "node": node, "minutes": 2 * seconds / 60,
        "share": used / (seconds * node["cpus"]), "memory": statistics.mean(samples or [0]) / (node["owners"] * node["reserved"]),
        "alone": alone, "beside": beside, "scavenged": scavenged, "work": ratio(beside + scavenged, alone),
        "units": [sum(is_done(unit, window) for window in which for unit in (*of_owners(window, "unit").values(), *window["units"]))
                  for which in zip(*pairs)],
        "idle": max(seconds * node["cpus"] - used, 0.001),
        "cpu": ratio(sum(second["cpu"] for _, second in both), sum(first["cpu"] for first, _ in both)),
        "cpu_by_kind": {kind: sum(second["cpu"] for _, second in both if second["kind"] == kind) / of_kind
                        for kind in sorted(cost) if (of_kind := sum(first["cpu"] for first, _ in both if first["kind"] == kind))},
        "wall": [[percentile([one[which]["wall"] for one in both], percent) for percent in (50, 90, 99)] for which in (0, 1)],
        # Of each unit beside itself: kinds take times of their own, and few units are above or below a median.
        "slower": statistics.median([ratio(second["wall"], first["wall"]) for first, second in both] or [0.0]),
        "growth": [[percentile([one[which]["wall"] for one in grown], percent) for percent in (50, 90, 100)] for which in (0, 1)],
        "longest": [max((one[which]["longest"] for one in grown), default=0.0) for which in (0, 1)],
        "back": sorted(max(second["wall"] - first["wall"], 0) for first, second in grown),
        "owners": len([unit for unit in units if unit["status"]]) + sum(len(window["refused"]) for window in windows),
        "hold": [sum(window["hold"] for window in which) / seconds for which in zip(*pairs)],
        "ended": {why: sum(end["why"] == why for end in ends) for why in WHYS}, "failed": len(failed),
        "lost": max(spent - good, 0) / spent if spent else 0.0,
    }


def show(sums):
    node = sums["node"]
    print(f"\nLinux {node['release']}, cgroup v{node['version']}: {node['cpus']} CPUs, {node['mib']} MiB; {node['owners']} owners with "
          f"{node['reserved']} MiB each, {node['scavengers']} scavengers with {node['grant']} MiB; {sums['minutes']:.1f} minutes")
    print(f"owners use {sums['share']:.0%} of the CPU time and {sums['memory']:.0%} of the memory that they reserved; "
          f"so all the CPU time there is would be {ratio(1, sums['share']):.2f} times the work\n")
    print(f"{'':<44}{'without':>12}{'with':>12}{'ratio':>9}")

    def row(name, first, second):
        print(f"{name:<44}{first:>12}{second:>12}{ratio(second, first):>9.2f}" if isinstance(first, int)
              else f"{name:<44}{first:>12.2f}{second:>12.2f}{ratio(second, first):>9.2f}")
    row("units of work done", *sums["units"])
    row("the same, in seconds of owners' CPU time", sums["alone"], sums["beside"] + sums["scavenged"])
    row("of it by owners", sums["alone"], sums["beside"])
    for name, first, second in zip(("median", "p90", "p99"), *sums["wall"]):
        row(f"an owner's unit, real seconds, {name}", first, second)
    for name, first, second in zip(("median", "p90", "most"), *sums["growth"]):
        row(f"an owner takes its reserve, seconds, {name}", first, second)
    row("its longest wait for one MiB, seconds", *sums["longest"])
    print(f"\nan owner's unit, CPU time with scavengers, times without: {sums['cpu']:.3f} "
          f"({', '.join(f'{kind} {ratio:.3f}' for kind, ratio in sums['cpu_by_kind'].items())})")
    print(f"scavengers used {sums['scavenged'] / sums['idle']:.0%} of the idle CPU time for units that ended; "
          f"of all their CPU time {sums['lost']:.0%} at least was for others")
    print("jobfence hold used {:.2%} of a CPU without scavengers, and {:.2%} with them".format(*sums["hold"]))
    print("scavengers ended:", "; ".join(f"{sums['ended'][why]} {words}" for why, words in WHYS.items()),
          f"; {sums['failed']} units of scavengers failed")
    back = sums["back"]
    print(f"memory back later than without scavengers, {len(back)} times: "
          + (", ".join(f"{name} {1000 * percentile(back, percent):.0f} ms" for name, percent in (("median", 50), ("p90", 90), ("most", 100)))
             if back else "never"))
    goals = Goals()
    goals.add("work done on the node, times without", f"{sums['work']:.2f}", f"{WORK}", sums["work"] >= WORK)
    goals.add("the same, of what the CPU time allows", f"{sums['work'] * sums['share']:.0%}", "-", True)
    goals.add("an owner's unit, CPU time, times without", f"{sums['cpu']:.3f}", f"{SLOWER}", sums["cpu"] <= SLOWER)
    goals.add("an owner's unit, real time, times without (median)", f"{sums['slower']:.3f}", f"{SLOWER}", sums["slower"] <= SLOWER)
    goals.add("owners killed or refused memory, or with a failed unit", f"{sums['owners']}", "0", not sums["owners"])
    most = back[-1] if back else 0.0
    goals.add("all memory back, most", f"{most:.2f} s", f"{BACK} s", most < BACK)
    goals.print()
    print("\nNot measured: caches and the bandwidth of memory by themselves; disks and network, since all is read from memory; a scheduler.")
