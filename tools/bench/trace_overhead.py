"""Cost of `runtime.trace`, as ratios of step times of alternating runs with and without a trace.

All runs take the same steps from the same weights. A round is a run without the trace, another one (the
control, which shows the noise of the machine) and a run with the trace, in random order. A run's time is the
median over its steps, and its work is the CPU time of all its threads; ratios to the first run are medians
over the rounds, with their 95 % confidence interval (order statistics). A second estimate depends less on
other processes: events per step times the cost to record an event, relative to the step's time.

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

from timed_runs import make_parser, prepared, timed_run

if TYPE_CHECKING:
    from hyrt.graph.graph import Graph
    from hyrt.telemetry.events import Event


WAYS = ("without", "control", "with")


@dataclass(slots=True)
class TraceCase:
    """Workload and the results of its runs.

    An epoch has fewer than 20 steps, so that the run reports the time of each step.
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
        """Run the steps once, of which the first quarter is warm-up. With `counts`, only count events."""
        from hyrt.config import build_config
        from hyrt.telemetry.events import StepMetrics

        settings = {
            "train": {"epochs": self.steps},
            "evaluate": {"every": 0},
            "checkpoint": {"every_epochs": 0},
            "balance": {"policy": "static", "predict": False},
            **self.settings,
        }
        settings["runtime"] = {**settings.get("runtime", {}), "trace": way == "with"}
        spent_s: list[float] = []

        def on_event(event: Event) -> None:
            if isinstance(event, StepMetrics):
                spent_s.append(time.process_time())

        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "checkpoints").mkdir()
            # Set an upper bound on the number of epochs, because the run is stopped earlier.
            groups = timed_run(
                build_config(settings),
                graph,
                steps=self.steps,
                on_event=on_event,
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
        # Skip arrows, names and device queues, which a run does not record event by event.
        host = {"X": "slices", "C": "values"}
        kinds = (
            host.get(e["ph"], "rest") if e["pid"] == 1 else "device" if e["ph"] == "X" else "rest"
            for e in events
        )
        self.events = Counter(kinds)

    def per_step(self, kind: str) -> float:
        return self.events[kind] / self.steps


def trace_cases() -> list[TraceCase]:
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
    """Format the ratios of times to those without the trace."""
    sorted_ratios = sorted(other / plain for plain, other in zip(times["without"], times[way], strict=True))
    low, high = interval(sorted_ratios)
    return f"{statistics.median(sorted_ratios):.3f} ({low:.3f} to {high:.3f})"


def interval(ordered: list[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median: the narrowest pair of order statistics, or all."""
    n = len(ordered)
    below, k = 0.0, 0
    while k < n // 2 and below + math.comb(n, k) / 2**n <= 0.025:
        below += math.comb(n, k) / 2**n
        k += 1
    low = max(k - 1, 0)
    return ordered[low], ordered[n - 1 - low]


def costs_us() -> dict[str, float]:
    """Return the microseconds to record one event of each kind, in the best of several rounds."""
    from hyrt.telemetry.trace import Trace

    trace, num = Trace(1000), 20_000
    track, name, values = trace.track(), trace.name_index("name"), trace.counter("c", "items")

    def slices() -> None:
        for _ in range(num):
            with trace.track().begin(name, 1, 0, 0, 1024):
                pass

    def counts() -> None:
        for _ in range(num):
            values.record(3)

    commands = opencl_commands(20)

    def device() -> None:
        from hyrt_devices.opencl_host.profiling import spans

        for _ in range(num // 20):
            trace.add_spans("d:0", "compute", spans(commands))

    costs = {}
    for kind, work in (("slices", slices), ("values", counts), ("device", device)):
        rounds = []
        for _ in range(7):
            started = time.perf_counter()
            work()
            rounds.append((time.perf_counter() - started) / num * 1e6)
        costs[kind] = min(rounds)
    assert not track.open_slices
    return costs


def opencl_commands(count: int) -> list[tuple[Any, Any]]:
    """Return commands that the first OpenCL device has executed."""
    import numpy as np
    import pyopencl as cl
    from hyrt_devices.opencl.launch import Launcher
    from hyrt_devices.opencl.probe import survey

    device = survey().found[0].device
    context = cl.Context([device])
    launcher = Launcher(context, device)
    kernel = cl.Program(context, "__kernel void nothing() {}").build().run_empty
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
    cells = " | ".join(
        ratios(times, way) for times in (case.ms, case.processor_ms) for way in ("with", "control")
    )
    noting = sum(case.a_step(kind) * cost for kind, cost in costs.items()) / (1e3 * plain)
    counts = ", ".join(f"{case.a_step(kind):.0f}" for kind in costs)
    return f"| {case.name} | {plain:.2f} | {traced:.2f} | {cells} | {counts} | {noting:.2%} |\n"


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", nargs="*", help="names of workloads; all by default")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order in each round")
    parser.add_argument("--table", type=Path, help="write a markdown table here")
    options = parser.parse_args()
    prepared()
    from hyrt.graph import open_graph

    order = random.Random(options.seed)
    costs = costs_us()
    print("microseconds per event: " + ", ".join(f"{kind} {cost:.2f}" for kind, cost in costs.items()))
    text = HEAD
    for case in trace_cases():
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
