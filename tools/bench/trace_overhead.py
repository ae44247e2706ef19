"""What `runtime.trace` costs: ratios of step times of runs with and without it, which take turns.

Runs are of the same steps from the same weights. A round is a run without, another without (the control,
which shows how far the machine can be trusted) and a run with the trace, in an order that is drawn. A run's
time is the median over its steps, and its work the processor time of all its threads; ratios to the first run
are medians over the rounds, with the interval that holds them with 95 % confidence (order statistics). Beside
them stands what depends least on what else the machine does: events a step, times what it costs to note one,
of the step's time.

    python tools/bench/trace_overhead.py --rounds 30 --table trace.md
"""

from __future__ import annotations

import gzip
import json
import math
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timed_runs import parser, prepared, timed_run

if TYPE_CHECKING:
    from hyrt.graph.graph import Graph
    from hyrt.observe.events import Event


WAYS = ("without", "control", "with")


@dataclass(slots=True)
class TraceCase:
    """What is trained and what its runs gave.

    An epoch has less than 20 steps, so that a run tells the time of each.
    """

    name: str
    data: str
    steps: int
    settings: dict[str, Any]
    ms: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    processor_ms: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    events: Counter[str] = field(default_factory=Counter)
    losses: dict[str, list[float]] = field(default_factory=dict)

    def run(self, graph: Graph, way: str, *, counts: bool) -> None:
        """Train the steps once; the first quarter does not count. A case's first run only counts events."""
        from hyrt.config import build_config
        from hyrt.observe.events import StepGroup

        settings = {
            "train": {"epochs": self.steps},
            "evaluate": {"every": 0},
            "checkpoint": {"every_epochs": 0},
            "balance": {"policy": "static", "predict": False},
            **self.settings,
        }
        settings["runtime"] = {**settings.get("runtime", {}), "trace": way == "with"}
        spent_s: list[float] = []

        def hear(event: Event) -> None:
            if isinstance(event, StepGroup):
                spent_s.append(time.process_time())

        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "checkpoints").mkdir()
            # More epochs than are needed: the run is stopped.
            groups = timed_run(
                build_config(settings),
                graph,
                steps=self.steps,
                hear=hear,
                checkpoints=folder / "checkpoints",
            ).groups
            if not counts:
                self._count(folder / "trace.json.gz")
                return
        assert all(len(group.losses) == 1 for group in groups), "an epoch of 20 steps or more"
        self.losses[way] = [group.loss for group in groups]
        warm = self.steps // 4
        self.ms[way].append(1e3 * statistics.median(group.step_s for group in groups[warm:]))
        self.processor_ms[way].append(1e3 * (spent_s[-1] - spent_s[warm - 1]) / (len(spent_s) - warm))

    def _count(self, path: Path) -> None:
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        # Arrows, names and those of device queues are not noted one by one while the run goes on.
        host = {"X": "slices", "C": "values"}
        kinds = (
            host.get(e["ph"], "rest") if e["pid"] == 1 else "device" if e["ph"] == "X" else "rest"
            for e in events
        )
        self.events = Counter(kinds)

    def a_step(self, kind: str) -> float:
        return self.events[kind] / self.steps


def cases() -> list[TraceCase]:
    data = "synthetic:community,train=16k"
    batch = {"data": {"batch_size": 1024}}
    threads = {"runtime": {"sample_threads": 2, "load_threads": 2}}
    return [
        TraceCase("first run", data, 48, {**batch, "devices": ["cpu:0"]}),
        TraceCase("first run, 2 threads a stage", data, 48, {**batch, **threads, "devices": ["cpu:0"]}),
        TraceCase("opencl:0", data, 48, {**batch, "devices": ["opencl:0"]}),
        TraceCase("cpu:0 and opencl:0", data, 48, {**batch, **threads, "devices": ["cpu:0", "opencl:0"]}),
        TraceCase(
            "steps of a millisecond",
            "synthetic:tiny",
            190,
            {
                "data": {"batch_size": 64},
                "model": {"hidden": 32},
                "sampler": {"fanout": [5, 5]},
                "devices": ["cpu:0"],
            },
        ),
    ]


def ratios(times: dict[str, list[float]], way: str) -> str:
    """To the runs without, as a table says it."""
    found = sorted(other / plain for plain, other in zip(times["without"], times[way], strict=True))
    low, high = interval(found)
    return f"{statistics.median(found):.3f} ({low:.3f} to {high:.3f})"


def interval(ordered: list[float]) -> tuple[float, float]:
    """The median's 95 % confidence interval: the narrowest pair of order statistics, or all."""
    n = len(ordered)
    below, k = 0.0, 0
    while k < n // 2 and below + math.comb(n, k) / 2**n <= 0.025:
        below += math.comb(n, k) / 2**n
        k += 1
    low = max(k - 1, 0)
    return ordered[low], ordered[n - 1 - low]


def costs_us() -> dict[str, float]:
    """Microseconds to note one event of each kind: the best of several rounds of many."""
    from hyrt.observe.trace.trace import Trace

    trace, num = Trace(1000), 20_000
    track, name, values = trace.track(), trace.number("name"), trace.counter("c", "items")

    def slices() -> None:
        for _ in range(num):
            with trace.track().begin(name, 1, 0, 0, 1024):
                pass

    def counts() -> None:
        for _ in range(num):
            values.add(3)

    commands = opencl_commands(20)

    def device() -> None:
        from hyrt_devices.opencl_host.profiling import spans

        for _ in range(num // 20):
            trace.hear("d:0", "compute", spans(commands))

    found = {}
    for kind, work in (("slices", slices), ("values", counts), ("device", device)):
        rounds = []
        for _ in range(7):
            started = time.perf_counter()
            work()
            rounds.append((time.perf_counter() - started) / num * 1e6)
        found[kind] = min(rounds)
    assert not track.open
    return found


def opencl_commands(count: int) -> list[tuple[Any, Any]]:
    """Commands that the first OpenCL device has run."""
    import numpy as np
    import pyopencl as cl
    from hyrt_devices.opencl.launch import Launcher
    from hyrt_devices.opencl.probe import survey

    device = survey().found[0].device
    context = cl.Context([device])
    launcher = Launcher(context, device)
    kernel = cl.Program(context, "__kernel void nothing() {}").build().nothing
    for _ in range(count):
        launcher.launch(kernel, (1,), (1,))
    launcher.write(cl.Buffer(context, cl.mem_flags.READ_WRITE, 4), np.zeros(1, np.float32))
    launcher.finish()
    return launcher.taken()[:count]


HEAD = (
    "| run | ms a step without | with | ratio of times | of the control | ratio of processor times "
    "| of the control | slices, values, device events a step | noting them, of a step |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
)


def row(case: TraceCase, costs: dict[str, float]) -> str:
    plain, traced = (statistics.median(case.ms[way]) for way in ("without", "with"))
    found = " | ".join(
        ratios(times, way) for times in (case.ms, case.processor_ms) for way in ("with", "control")
    )
    noting = sum(case.a_step(kind) * cost for kind, cost in costs.items()) / (1e3 * plain)
    counts = ", ".join(f"{case.a_step(kind):.0f}" for kind in costs)
    return f"| {case.name} | {plain:.2f} | {traced:.2f} | {found} | {counts} | {noting:.2%} |\n"


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("--rounds", type=int, default=30)
    asked.add_argument("--only", nargs="*", help="names of runs; all by default")
    asked.add_argument("--seed", type=int, default=0, help="draws the order in each round")
    asked.add_argument("--table", type=Path, help="write a markdown table here")
    options = asked.parse_args()
    prepared()
    from hyrt.graph import open_graph

    order = random.Random(options.seed)
    costs = costs_us()
    print("microseconds to note one: " + ", ".join(f"{kind} {cost:.2f}" for kind, cost in costs.items()))
    text = HEAD
    for case in cases():
        if options.only and case.name not in options.only:
            continue
        graph = open_graph(case.data)
        case.run(graph, "with", counts=False)
        for _ in range(options.rounds):
            for way in order.sample(WAYS, len(WAYS)):
                case.run(graph, way, counts=True)
            assert case.losses["without"] == case.losses["with"], "the trace changed what was computed"
        line = row(case, costs)
        print(line, end="", flush=True)
        text += line
    print(f"load average {os.getloadavg()[0]:.1f}")
    if options.table:
        options.table.write_text(text)


if __name__ == "__main__":
    main()
