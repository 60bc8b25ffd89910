# SPDX-License-Identifier: GPL-2.0-or-later
"""What owners do in one window: units of work and phases in which they need what they reserved, at times of the window.

A trace is numbers alone, from a seed. So a window with scavengers and one without have the same owners.
"""

import random
from dataclasses import dataclass

# Of the CPU time and the memory that owners reserve, they use so much: what a site measured with 2.9 million jobs.
CPU_USED, MEMORY_USED = 0.60, 0.19
# So much of its memory an owner always has, and so much in a phase in which it needs what it reserved.
LEAST, MOST = 0.06, 0.90
# Beside that it has its interpreter and one unit.
INTERPRETER = 16  # MiB
# One such phase in so many seconds, and the shortest.
PHASE_EACH, SHORTEST = 60, 0.5
# How fast an owner then takes memory, in MiB a second. 0: as fast as it can.
PACES = 0, 256
# What a MiB costs that is touched first, in seconds of CPU time.
TOUCH = 0.0004


@dataclass(frozen=True)
class Shape:
    owners: int
    reserved: int  # MiB of each
    seconds: float  # of a window
    costs: dict  # of a unit of each kind, in seconds of CPU time
    memory: dict  # of the same, in MiB
    cpu_used: float = CPU_USED
    memory_used: float = MEMORY_USED

    def least(self):
        return int(LEAST * self.reserved)

    def most(self):
        return max(min(int(MOST * self.reserved), int(self.reserved - INTERPRETER - 1.1 * max(self.memory.values()))), self.least())

    def phases(self):
        return max(round(self.seconds / PHASE_EACH), 1)

    def phase_seconds(self):
        """How long each phase is, so that the mean is right."""
        in_units = self.cpu_used * sum(self.memory.values()) / len(self.memory) / 2
        lacks = self.memory_used * self.reserved - self.least() - in_units
        return max(lacks * self.seconds / (self.phases() * max(self.most() - self.least(), 1)), SHORTEST)


def window(shape, seed):
    """The actions of each owner, by their times."""
    common = random.Random(f"{seed}")
    slot = shape.seconds / shape.phases()
    together = [(common.uniform(0.5, 0.7) * slot, common.choice(PACES)) for _ in range(shape.phases())]
    return [one_owner(shape, random.Random(f"{seed} {owner}"), slot, together) for owner in range(shape.owners)]


def one_owner(shape, rng, slot, together):
    phases = []
    for number, (at, pace) in enumerate(together):
        if number % 2:  # otherwise all grow at once
            at, pace = rng.uniform(0.3, 0.7) * slot, rng.choice(PACES)
        begin, end = number * slot + at, min(number * slot + at + shape.phase_seconds(), (number + 1) * slot)
        phases += [{"at": begin, "do": "grow", "mib": shape.most(), "pace": pace}, {"at": end, "do": "shrink", "mib": shape.least()}]
    actions = [{"at": 0.0, "do": "grow", "mib": shape.least(), "pace": 256, "is_first": True}, *phases]
    grown = TOUCH * (shape.least() + shape.phases() * (shape.most() - shape.least()))
    share = max(shape.cpu_used - grown / shape.seconds, 0.05)
    kinds, at = sorted(shape.costs), 0.1
    while True:
        begin = at
        for kind in rng.choices(kinds, k=rng.randint(1, 5)):
            if at + shape.costs[kind] / share > shape.seconds:
                return sorted(actions, key=lambda action: action["at"])
            actions.append({"at": at, "do": "unit", "kind": kind})
            at += shape.costs[kind]
        at = begin + (at - begin) / share
