"""The pipeline by brute force: time in ticks, every server looked at in every tick."""

from __future__ import annotations

from fractions import Fraction


class Job:
    def __init__(self, step, share, ticks, demand):
        self.step, self.share, self.left, self.demand = step, share, Fraction(ticks), demand


def done_by_ticks(steps, depth, *, demands=None, capacity=None, per_tick=1):
    """When each step is synchronized, in ticks.

    steps: [(sample, load, transfer, propagate, synchronize)], lists of whole ticks per trainer but the last.
    demands: server name to what it uses of one resource; together they get `capacity`, each alike slower.
    With that, times are right to about 1 / per_tick ticks.
    """
    trainers = len(steps[0][0])
    demands = demands or {}
    servers = {}
    done, begun, now = [], 0, Fraction(0)
    # How far each share is: the stage it waits for, or is in.
    sample_at = load_at = (0, 0)
    sampled, loaded, staged, ready = set(), set(), set(), set()

    def place(name, step, share, ticks):
        servers[name] = Job(step, share, ticks, demands.get(name.split(".")[0], 0))

    while len(done) < len(steps):
        moved = True
        while moved:
            moved = False
            for name, job in list(servers.items()):
                if job.left > 0:
                    continue
                del servers[name]
                moved = True
                kind = name.split(".")[0]
                if kind == "sample":
                    sampled.add((job.step, job.share))
                    sample_at = (job.step, job.share + 1) if job.share + 1 < trainers else (job.step + 1, 0)
                elif kind == "load":
                    loaded.add((job.step, job.share))
                    load_at = (job.step, job.share + 1) if job.share + 1 < trainers else (job.step + 1, 0)
                elif kind == "transfer":
                    staged.add((job.step, job.share))
                elif kind == "propagate":
                    ready.add((job.step, job.share))
                else:
                    done.append(now)
            step, share = sample_at
            if "sample" not in servers and step < len(steps) and step < len(done) + depth:
                place("sample", step, share, steps[step][0][share])
                begun = max(begun, step)
                moved = True
            if "load" not in servers and load_at in sampled:
                place("load", *load_at, steps[load_at[0]][1][load_at[1]])
                moved = True
            for i in range(trainers):
                if f"transfer.{i}" not in servers:
                    mine = sorted(pair for pair in loaded if pair[1] == i)
                    if mine:
                        loaded.discard(mine[0])
                        place(f"transfer.{i}", *mine[0], steps[mine[0][0]][2][i])
                        moved = True
                now_due = (len(done), i)
                if f"propagate.{i}" not in servers and now_due in staged:
                    staged.discard(now_due)
                    place(f"propagate.{i}", *now_due, steps[len(done)][3][i])
                    moved = True
            current = len(done)
            if "synchronize" not in servers and all((current, i) in ready for i in range(trainers)):
                for i in range(trainers):
                    ready.discard((current, i))
                place("synchronize", current, 0, steps[current][4])
                moved = True
        wanted = sum(job.demand for job in servers.values())
        slow = (
            Fraction(1) if capacity is None or wanted <= capacity else Fraction(capacity) / Fraction(wanted)
        )
        for job in servers.values():
            job.left -= (slow if job.demand else 1) * Fraction(1, per_tick)
        now += Fraction(1, per_tick)
    return [float(moment) for moment in done]
