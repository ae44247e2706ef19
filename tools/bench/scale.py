"""Time per step and memory of training on growing memory-mapped graphs, and the causes of growth.

    python tools/bench/scale.py --folder /fast/disk/scale
    python tools/bench/scale.py --folder /fast/disk/scale --model gcn --sizes 1,5 --rounds 1 --json

The tool generates graphs of 1, 5 and 20 million vertices (20 edges per vertex, 128 float16 features; 0.35 GB
per million vertices) as folders, unless they exist. On each, it trains an epoch of 60 steps with 1024 targets
in a separate process, like `hyrt run`: GraphSAGE, fan-out 25,10, 256 hidden, followed by a sampled evaluation
of 2048 vertices. The run reports mean times over groups of 6 steps. The first 12 steps are warm-up, and
medians are over the other 8 groups. All files are read once before, so that the page cache is warm. The sizes
alternate. For each size, the output shows the round with the median step, the median over rounds of the ratio
to the first size, and the maximum over rounds of RssAnon in /proc, which is polled while the training process
runs. The exit code is 1 unless anonymous memory stays below topology + 2 GiB, and a step takes less than
twice as long as on the first size.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timed_runs import BATCH, make_parser, prepared, settings, timed_run

if TYPE_CHECKING:
    from hyrt.config import Config
    from hyrt.graph.graph import Graph
    from hyrt.telemetry.events import Event

EDGES, FEATURES, WARM_UP, STEPS = 20, 128, 12, 48
ALLOWED_BYTES = 2 << 30
ALLOWED_GROWTH = 2.0
STAGES = ("sample", "load", "propagate")
MODELS = ("graphsage", "gcn", "gin", "gat")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--folder", type=Path, required=True, help="folder of the graphs; missing graphs are generated"
    )
    parser.add_argument("--model", choices=MODELS, default=MODELS[0])
    parser.add_argument("--sizes", default="1,5,20", help="millions of vertices, comma-separated")
    parser.add_argument("--rounds", type=int, default=3, help="runs per size")
    parser.add_argument("--json", action="store_true", help="print one JSON object per size")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(measure(options.child, options.model)))
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    folders = {int(size): options.folder / f"{size}M" for size in options.sizes.split(",")}
    for millions, folder in folders.items():
        if not folder.exists():
            generate(millions, folder)
    runs: dict[int, list[dict[str, Any]]] = {millions: [] for millions in folders}
    for _ in range(options.rounds):
        for millions, folder in folders.items():
            runs[millions].append(run_child(options.folder, folder, options.model))
    first = [run["step_ms"] for run in next(iter(runs.values()))]
    results = [median_run(rounds, first) for rounds in runs.values()]
    if options.json:
        print("\n".join(map(json.dumps, results)))
    else:
        print("\n".join([*table(results), "", *explain(results[0], results[-1])]))
    fits = all(r["anonymous_bytes"] < r["topology_bytes"] + ALLOWED_BYTES for r in results)
    return int(not fits or any(r["ratio"] >= ALLOWED_GROWTH for r in results))


def median_run(rounds: list[dict[str, Any]], first_ms: list[float]) -> dict[str, Any]:
    """Return the round with the median step, with the maximum memory and the median ratio of all rounds.

    A ratio compares a round's step with the first size's step in the same round.
    """
    middle = sorted(rounds, key=lambda run: float(run["step_ms"]))[len(rounds) // 2]
    ratios = [run["step_ms"] / before for run, before in zip(rounds, first_ms, strict=True)]
    return middle | {
        "anonymous_bytes": max(run["anonymous_bytes"] for run in rounds),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }


def generate(millions: int, folder: Path) -> None:
    """Write a generated graph to a folder, piece by piece."""
    targets = (WARM_UP + STEPS) * BATCH
    spec = (
        f"papers-s,vertices={millions}M,edges={millions * EDGES}M,features={FEATURES},dtype=float16,"
        f"train={targets},val=1024,test=1024"
    )
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "hyrt", "data", "generate", spec, folder], check=True, stdout=sys.stderr
    )
    print(f"generated {folder} in {time.perf_counter() - started:.0f} s", file=sys.stderr)


def run_child(folder: Path, graph: Path, model: str) -> dict[str, Any]:
    """Train in a new process, and poll its anonymous memory."""
    command = [sys.executable, __file__, "--folder", str(folder), "--model", model, "--child", str(graph)]
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        while child.poll() is None:
            peak = max(peak, anonymous_bytes(child.pid))
            time.sleep(0.05)
        assert child.stdout is not None
        out = child.stdout.read()
    if child.returncode:
        raise SystemExit(f"training on {graph} failed with exit code {child.returncode}")
    measured: dict[str, Any] = json.loads(out)
    return measured | {"anonymous_bytes": peak}


def anonymous_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)


def warm_page_cache(folder: Path) -> None:
    buffer = bytearray(1 << 24)
    for file in folder.glob("*.npy"):
        with file.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass


@dataclass(frozen=True, slots=True)
class Usage:
    """Page faults and CPU seconds of this process and busy CPU seconds of the machine, so far."""

    at_s: float
    minor_faults: int
    major_faults: int
    process_s: float
    machine_s: float

    @staticmethod
    def now() -> Usage:
        import psutil

        process, machine = resource.getrusage(resource.RUSAGE_SELF), psutil.cpu_times()
        return Usage(
            time.perf_counter(),
            process.ru_minflt,
            process.ru_majflt,
            process.ru_utime + process.ru_stime,
            sum(machine) - machine.idle - machine.iowait - machine.guest - machine.guest_nice,
        )

    def cores_elsewhere(self, since: Usage) -> float:
        """Return the number of cores that other processes have used since `since`."""
        busy = (self.machine_s - since.machine_s) - (self.process_s - since.process_s)
        return max(0.0, busy / (self.at_s - since.at_s))


def measure(folder: Path, model: str) -> dict[str, Any]:
    """Open a graph, train, and return medians over the groups of steps after the warm-up."""
    prepared()
    warm_page_cache(folder)
    import hyrt
    from hyrt.config import build_config
    from hyrt.telemetry.events import RunStarted, StepMetrics

    started = time.perf_counter()
    graph = hyrt.load(folder)
    open_s = time.perf_counter() - started
    config = build_config(
        settings(
            model,
            epochs=1,
            data={"source": str(folder)},
            evaluate={"every": 1, "mode": "sampled"},
        )
    )
    usage: list[Usage] = []

    def on_event(event: Event) -> None:
        # A group ends at the last step of an epoch and at the last warm-up step.
        if isinstance(event, RunStarted) or (
            isinstance(event, StepMetrics) and event.step in (WARM_UP, WARM_UP + STEPS)
        ):
            usage.append(Usage.now())

    run = timed_run(config, graph, on_event=on_event)
    groups = [group for group in run.groups if group.step > WARM_UP]
    seconds = {
        "step": [group.step_s for group in groups],
        **{name: [group.stage_s[name] for group in groups] for name in STAGES},
    }
    return {
        "model": model,
        "vertices": graph.num_vertices,
        "edges": graph.num_edges,
        "topology_bytes": graph.topology.indptr.nbytes + graph.topology.indices.nbytes,
        "feature_bytes": graph.num_vertices * FEATURES * 2,
        "open_s": open_s,
        "threads": groups[0].threads,
        **{f"{name}_ms": 1e3 * statistics.median(times) for name, times in seconds.items()},
        "step_ms_quartiles": [1e3 * q for q in statistics.quantiles(seconds["step"], n=4)[::2]],
        "batch_edges": statistics.fmean(1e6 * group.mteps * group.step_s for group in groups),
        "batch_vertices": batch_vertices(config, graph),
        "warm_up_faults": (usage[1].minor_faults - usage[0].minor_faults) / WARM_UP,
        "minor_faults": (usage[2].minor_faults - usage[1].minor_faults) / STEPS,
        "major_faults": (usage[2].major_faults - usage[1].major_faults) / STEPS,
        "cores_elsewhere": usage[2].cores_elsewhere(usage[1]),
        "losses": [run.groups[0].losses[0], groups[-1].losses[-1]],
    }


def batch_vertices(config: Config, graph: Graph) -> list[float]:
    """Return the mean numbers of distinct vertices in V^0, V^1, V^2 over a few steps.

    The steps are sampled again, because loading with aggregation never lists V^0.
    """
    import numpy as np

    from hyrt.runtime.workers import Workers
    from hyrt.training.setup import build_sampler

    sampler = build_sampler(config, graph, graph.split("train", 0))
    counts = []
    with Workers(1, "count") as workers:
        for step in range(WARM_UP, WARM_UP + 3):
            batch = sampler.sample(step, sampler.units(step), workers, in_place=False)
            counts.append([batch.blocks[0].num_src, *(block.num_dst for block in batch.blocks)])
            batch.release()
    means: list[float] = np.mean(counts, axis=0).tolist()
    return means


def table(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| vertices | topology GB | features GB | ms a step (quartiles) | ratio (each round) | sample ms "
        "| load ms | propagate ms | edges a step | V0, V1, V2 a step | page faults a step: warm-up | then "
        "| of them from disk | anonymous GiB | allowed GiB | cores busy elsewhere |",
        "|" + " ---: |" * 10 + " --- |" + " ---: |" * 5,
    ]
    for r in results:
        low, high = r["step_ms_quartiles"]
        allowed = r["topology_bytes"] + ALLOWED_BYTES
        cells = [
            f"{r['vertices'] / 1e6:g} M",
            f"{r['topology_bytes'] / 1e9:.2f}",
            f"{r['feature_bytes'] / 1e9:.2f}",
            f"{r['step_ms']:.1f} ({low:.1f} to {high:.1f})",
            f"{r['ratio']:.2f} ({', '.join(f'{ratio:.2f}' for ratio in r['ratios'])})",
            *(f"{r[f'{stage}_ms']:.1f}" for stage in STAGES),
            f"{r['batch_edges']:,.0f}",
            ", ".join(f"{count:,.0f}" for count in r["batch_vertices"]),
            f"{r['warm_up_faults']:,.0f}",
            f"{r['minor_faults']:,.0f}",
            f"{r['major_faults']:.1f}",
            f"{r['anonymous_bytes'] / 2**30:.2f}",
            f"{allowed / 2**30:.2f}",
            f"{r['cores_elsewhere']:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def explain(first: dict[str, Any], last: dict[str, Any]) -> list[str]:
    """Describe the growth from the first graph to the last and its causes, based on the measured values."""

    def grows(key: str) -> float:
        return float(last[key] / first[key])

    def per_edge(result: dict[str, Any], stage: str) -> float:
        return float(result[f"{stage}_ms"] * 1e6 / result["batch_edges"])

    more_edges = grows("batch_edges")
    more_rows = last["batch_vertices"][0] / first["batch_vertices"][0]
    rows_mb = [r["batch_vertices"][0] * FEATURES * 2 / 1e6 for r in (first, last)]
    lines = [
        f"From {first['vertices'] / 1e6:g} M to {last['vertices'] / 1e6:g} M vertices a step takes "
        f"{last['ratio']:.2f} times as long:",
        f"- work: {more_edges:.2f} times the sampled edges; {more_rows:.2f} times the distinct input "
        f"vertices ({rows_mb[0]:.0f} MB of feature rows become {rows_mb[1]:.0f} MB), since neighbourhoods "
        "overlap less in a larger graph;",
    ]
    reasons = {
        "sample": f"row pointers and neighbour lists take {last['topology_bytes'] / 1e9:.2f} GB instead "
        f"of {first['topology_bytes'] / 1e9:.2f} GB",
        "load": f"rows take {last['feature_bytes'] / 1e9:.2f} GB instead of "
        f"{first['feature_bytes'] / 1e9:.2f} GB; caches and address translation should miss more often, "
        "which is not measured here",
        "propagate": "it reads only mini-batch arrays, so the time beyond the growth of the edges is spent "
        "waiting for memory that the other stages use",
    }
    lines += [
        f"- {stage}: {grows(f'{stage}_ms'):.2f} times the time, {per_edge(first, stage):.0f} → "
        f"{per_edge(last, stage):.0f} ns a sampled edge: {reason};"
        for stage, reason in reasons.items()
    ]
    lines.append(
        f"- page faults: {first['warm_up_faults']:,.0f} → {last['warm_up_faults']:,.0f} per step during the "
        f"warm-up, {first['minor_faults']:,.0f} → {last['minor_faults']:,.0f} after it: the first touch of "
        "mapped pages."
    )
    return lines


if __name__ == "__main__":
    sys.exit(main())
