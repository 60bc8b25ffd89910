#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Makes a usage log as a site has it: usage_log.py --lines N [--seed N] [--nodes N] [--days N] [--split] FILE|DIRECTORY

Jobs of 400 users in 40 accounts end over half a year. With --split, each node has a directory of its own, with a file for each 30 days.
Of each job all figures follow from the seed, so two runs write the same bytes.
"""

import argparse
import random
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
END = 1_790_000_000  # 2026-09-21T14:13:20Z
DAY = 86_400
GIB, MIB = 1 << 30, 1 << 20

# As src/report/account.rs writes it. What is in braces differs from step to step.
LINE = (
    '{{"schema":"jobfence-usage-1","ended":"{ended}","started":"{started}","started_unix_seconds":{began:.6f},'
    '"ended_unix_seconds":{end:.6f},"wall_seconds":{wall:.6f},"node":"{node}","job":"{job}","job_name":null,"step":"{step}","run":0,'
    '"uid":{uid},"user":"user{user}","partition":"{partition}","account":"account{account}","qos":"normal","project":null,"global_job":null,'
    '"holder":"scheduler Slurm","end":"closed","exit_status":{status},"exit_signal":{signal},"cpus_granted":{cpus},'
    '"memory_granted_bytes":{memory},"gpus_granted":null,"cpus_limit":{cpus},"memory_limit_bytes":{memory},"processes_limit":4096,'
    '"cpu_seconds":{cpu:.6f},"cpu_user_seconds":{cpu:.6f},"cpu_system_seconds":0.125000,"periods":{periods},'
    '"throttled_periods":{throttled},"throttled_seconds":0.250000,"memory_peak_bytes":{peak},"swap_peak_bytes":0,'
    '"memory_anonymous_bytes":4096000,"memory_file_bytes":8192000,"memory_unwritten_bytes":0,"memory_shared_bytes":4096,'
    '"memory_kernel_bytes":1048576,"memory_huge_pages_bytes":null,"memory_swap_bytes":0,"memory_high_events":0,"memory_max_events":0,'
    '"oom_kills":{kills},"processes_peak":17,"forks_refused":0,"read_bytes":73400320,"written_bytes":41943040,"read_operations":812,'
    '"write_operations":377,"disks":[{{"disk":"259:0","read_bytes":73400320,"written_bytes":41943040,"read_operations":812,'
    '"write_operations":377}}],"cpu_pressure_some_seconds":1.250000,"cpu_pressure_full_seconds":0.000000,'
    '"memory_pressure_some_seconds":0.000000,"memory_pressure_full_seconds":0.000000,"io_pressure_some_seconds":2.500000,'
    '"io_pressure_full_seconds":1.500000,"rchar_bytes":null,"wchar_bytes":null,'
    '"job_cpu_seconds":{cpu:.6f},"job_memory_peak_bytes":{peak},"tasks":[],"sentences":[]}}\n'
)


def moment(seconds):
    from time import gmtime, strftime

    return strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(seconds))


def jobs(chance, count, days, nodes):
    """The lines of jobs, in the order in which they end: a step, the batch step and the extern step, on one node or on several."""
    users = []
    for number in range(400):
        cpus = chance.choice([1, 2, 4, 8, 8, 16, 32])
        users.append((chance.randrange(40), cpus, cpus * chance.choice([2, 4, 8]) * GIB, chance.betavariate(2, 2), chance.betavariate(2, 4)))
    written, job = 0, 1_000_000
    while written < count:
        end = END - days * DAY + days * DAY * written / count
        job += 1
        # Few users have most of the jobs.
        user = min(int(chance.expovariate(1 / 40)), 399)
        account, cpus, memory, busy, filled = users[user]
        wall = min(chance.lognormvariate(7.5, 1.4), 5 * DAY)
        many = chance.choice([2, 4]) if chance.random() < 0.03 else 1
        where = chance.sample(range(nodes), min(many, nodes))
        killed = chance.random() < 0.006
        status = chance.choice(["0"] * 30 + ["1"])
        share = min(1.0, max(0.01, chance.gauss(busy, 0.05)))
        peak = memory if killed else int(memory * min(0.97, max(0.01, chance.gauss(filled, 0.02))))
        for place, node in enumerate(where):
            for step, part, late in (("0", 0.98, -1.0), ("batch", 0.01, 0.0), ("extern", 0.001, 0.5)):
                if step == "batch" and place > 0 or written >= count:
                    continue
                written += 1
                yield node, end + late, LINE.format(
                    ended=moment(end + late), started=moment(end - wall), began=end - wall, end=end + late, wall=wall + late,
                    node=f"node{node:04}", job=job, step=step, uid=10_000 + user, user=user, account=account,
                    partition="long" if wall > DAY / 2 else "short", status="null" if killed else status,
                    signal="9" if killed else "null", cpus=cpus, memory=memory, cpu=cpus * wall * share * part,
                    periods=int(wall * 10), throttled=int(wall * 10 * max(0.0, share - 0.9)), peak=peak if step == "0" else 4 * MIB,
                    kills=1 if killed and step == "0" else 0,
                )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--days", type=int, default=180)
    parser.add_argument("--split", action="store_true")
    parser.add_argument("place", type=Path)
    options = parser.parse_args()
    lines = jobs(random.Random(options.seed), options.lines, options.days, options.nodes)
    if not options.split:
        with open(options.place, "w", buffering=1 << 20) as file:
            for _, _, line in lines:
                file.write(line)
        return
    files = {}
    for node, end, line in lines:
        piece = int((end - END + options.days * DAY) // (30 * DAY))
        if (node, piece) not in files:
            directory = options.place / f"node{node:04}"
            directory.mkdir(parents=True, exist_ok=True)
            if (node, piece - 1) in files:
                files[node, piece - 1].close()
            files[node, piece] = open(directory / f"usage.jsonl-{piece}", "a", buffering=1 << 14)
        files[node, piece].write(line)


if __name__ == "__main__":
    main()
