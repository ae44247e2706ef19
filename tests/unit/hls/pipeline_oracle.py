"""What a feed-forward pipeline of counted reads and writes does, found by moving tokens one by one.

Reads and writes block, so the end does not depend on the order in which processes move (a Kahn network of
bounded queues).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from unit.hls.simulated_streams import Step


@dataclass(frozen=True)
class Blocked:
    process: int
    writes: bool
    stream: int
    values: int


@dataclass(frozen=True)
class End:
    sums: list[int]
    blocked: list[Blocked]
    left: list[int]


def run(programs: Sequence[Sequence[Step]], depths: Sequence[int]) -> End:
    todo = [
        deque((writes, stream) for writes, stream, count in program for _ in range(count))
        for program in programs
    ]
    queues: list[deque[int]] = [deque() for _ in depths]
    written = [0] * len(programs)
    sums = [0] * len(programs)
    moved = True
    while moved:
        moved = False
        for process, steps in enumerate(todo):
            while steps:
                writes, stream = steps[0]
                queue = queues[stream]
                if len(queue) >= depths[stream] if writes else not queue:
                    break
                steps.popleft()
                moved = True
                if writes:
                    written[process] += 1
                    queue.append((process * 1000003 + written[process]) % 2**32)
                else:
                    sums[process] = (sums[process] * 31 + queue.popleft()) % 2**64
    blocked = [
        Blocked(process, steps[0][0], steps[0][1], len(queues[steps[0][1]]))
        for process, steps in enumerate(todo)
        if steps
    ]
    return End(sums, blocked, [len(queue) for queue in queues])


def deadlock_message(end: End, depths: Sequence[int]) -> str:
    lines = [
        f"process 'process[{at.process}]' of region 'pipeline' waits to {'write' if at.writes else 'read'} "
        f"stream 's{at.stream}' ({at.values} of {depths[at.stream]} values)"
        for at in end.blocked
    ]
    return "deadlock: " + "; ".join(lines)
