"""Training steps on ever larger memory-mapped graphs: time of a step, memory, and what grows.

    python tools/scale.py --folder /fast/disk/scale
    python tools/scale.py --folder /fast/disk/scale --sizes 1,5,20 --json

Generates graphs of 1, 5 and 20 million vertices (20 edges a vertex, 128 features in float16; 0.35 GB a million vertices) as
folders, unless they are there, and trains 60 steps of 1024 targets on each in a process of its own: GraphSAGE, fan-out
25,10, 256 hidden. The first 10 steps are warm-up. All files are read once before, so that the page cache is warm.
Anonymous memory is RssAnon of /proc, polled over the whole life of the training process. Exits with 1 where
a figure is missed: anonymous memory under topology + 2 GiB, and a step less than twice that of the smallest graph.
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
from pathlib import Path
from typing import Any

EDGES, FEATURES, BATCH, WARM_UP, STEPS = 20, 128, 1024, 10, 50
ALLOWED_BYTES = 2 << 30
ALLOWED_GROWTH = 2.0
STAGES = ("sample", "load", "propagate")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="where the graphs are or go")
    parser.add_argument("--sizes", default="1,5,20", help="millions of vertices, comma-separated")
    parser.add_argument("--json", action="store_true", help="print one JSON object a size")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(measure(options.child)))
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    results = []
    for millions in (int(size) for size in options.sizes.split(",")):
        folder = options.folder / f"{millions}M"
        if not folder.exists():
            generate(millions, folder)
        result = run_child(options.folder, folder) | {"millions": millions}
        results.append(result)
        if options.json:
            print(json.dumps(result), flush=True)
    if not options.json:
        print("\n".join([*table(results), "", *explain(results[0], results[-1])]))
    small = min(result["anonymous_bytes"] - result["topology_bytes"] for result in results)
    slow = results[-1]["step_ms"] / results[0]["step_ms"]
    return int(small >= ALLOWED_BYTES or slow >= ALLOWED_GROWTH)


def generate(millions: int, folder: Path) -> None:
    """Stream a graph to a folder."""
    targets = (WARM_UP + STEPS) * BATCH
    spec = (
        f"papers-s,vertices={millions}M,edges={millions * EDGES}M,features={FEATURES},dtype=float16,"
        f"train={targets},val=1024,test=1024"
    )
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "hyrt", "data", "generate", spec, folder], check=True, stdout=sys.stderr)
    print(f"generated {folder} in {time.perf_counter() - started:.0f} s", file=sys.stderr)


def run_child(folder: Path, graph: Path) -> dict[str, Any]:
    """Train in a new process and watch its anonymous memory from here."""
    command = [sys.executable, __file__, "--folder", folder, "--child", graph]
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        while child.poll() is None:
            peak = max(peak, anonymous_bytes(child.pid))
            time.sleep(0.05)
        assert child.stdout is not None
        out = child.stdout.read()
    if child.returncode:
        raise SystemExit(f"training on {graph} failed with exit code {child.returncode}")
    return json.loads(out) | {"anonymous_bytes": peak}


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


def measure(folder: Path) -> dict[str, Any]:
    """Open a graph, train, and return medians over the steps after the warm-up."""
    from hyrt.process import prepare_process

    prepare_process()
    warm_page_cache(folder)
    import numpy as np

    import hyrt
    from hyrt.config import build_config
    from hyrt.runtime.load import Loader
    from hyrt.runtime.pipeline import Pipeline
    from hyrt.runtime.setup import (
        assign_threads,
        build_model,
        build_optimizer,
        build_sampler,
        default_split,
        open_trainers,
    )
    from hyrt.runtime.stages import Stages
    from hyrt.runtime.synchronizer import Synchronizer
    from hyrt.workers import Workers

    started = time.perf_counter()
    graph = hyrt.load(folder)
    open_s = time.perf_counter() - started
    config = build_config(
        {
            "data": {"batch_size": BATCH},
            "sampler": {"fanout": [25, 10]},
            "model": {"kind": "graphsage", "hidden": 256},
        }
    )
    threads = assign_threads(config)
    sampler = build_sampler(config, graph, graph.split("train", 0))
    model = build_model(config, graph)
    parameters = list(model.parameters())
    optimizer, _ = build_optimizer(config, parameters)
    trainers = open_trainers(config, graph, model, threads)
    sample_workers, load_workers = Workers(threads.sample, "sample"), Workers(threads.load, "load")
    stages = Stages(
        sampler, Loader(graph), trainers, default_split(config), sample_workers, load_workers
    )
    synchronizer = Synchronizer(parameters, optimizer, trainers, config.seed)
    seconds: dict[str, list[float]] = {name: [] for name in ("step", *STAGES)}
    edges, losses = [], []
    with Pipeline(stages, range(WARM_UP + STEPS), depth=config.runtime.depth, stall_timeout_s=120) as pipeline:
        before = time.perf_counter()
        for work in pipeline.steps():
            if work.step == WARM_UP:
                faults = resource.getrusage(resource.RUSAGE_SELF)
            losses.append(synchronizer.step(work).loss)
            now = time.perf_counter()
            if work.step >= WARM_UP:
                seconds["step"].append(now - before)
                for name in STAGES:
                    seconds[name].append(work.seconds[name])
                edges.append(work.num_edges)
            before = now
    after = resource.getrusage(resource.RUSAGE_SELF)
    # The fused load reads rows in place and never lists V^0: it is counted on a few steps sampled again.
    vertices = []
    for step in range(WARM_UP, WARM_UP + 3):
        batch = sampler.sample(step, sampler.units(step), sample_workers, in_place=False)
        vertices.append([batch.blocks[0].num_src, *(block.num_dst for block in batch.blocks)])
        batch.release()
    for trainer in trainers:
        trainer.device.close()
    sample_workers.close()
    load_workers.close()
    return {
        "vertices": graph.num_vertices,
        "edges": graph.num_edges,
        "topology_bytes": graph.indptr.nbytes + graph.indices.nbytes,
        "feature_bytes": graph.num_vertices * FEATURES * 2,
        "open_s": open_s,
        "threads": [threads.sample, threads.load, threads.train],
        **{f"{name}_ms": 1e3 * statistics.median(times) for name, times in seconds.items()},
        "step_ms_quartiles": [1e3 * q for q in statistics.quantiles(seconds["step"], n=4)[::2]],
        "batch_edges": statistics.fmean(edges),
        "batch_vertices": np.mean(vertices, axis=0).tolist(),
        "minor_faults": (after.ru_minflt - faults.ru_minflt) / STEPS,
        "major_faults": (after.ru_majflt - faults.ru_majflt) / STEPS,
        "losses": [losses[0], losses[-1]],
    }


def table(results: list[dict[str, Any]]) -> list[str]:
    first = results[0]
    lines = [
        "| vertices | edges | topology GB | features GB | ms a step (quartiles) | ratio | sample ms | load ms | propagate ms "
        "| edges a step | V0, V1, V2 a step | minor faults a step | major | anonymous GiB | allowed GiB | open s |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in results:
        low, high = r["step_ms_quartiles"]
        allowed = r["topology_bytes"] + ALLOWED_BYTES
        cells = [
            f"{r['vertices'] / 1e6:g} M",
            f"{r['edges'] / 1e6:g} M",
            f"{r['topology_bytes'] / 1e9:.2f}",
            f"{r['feature_bytes'] / 1e9:.2f}",
            f"{r['step_ms']:.1f} ({low:.1f} to {high:.1f})",
            f"{r['step_ms'] / first['step_ms']:.2f}",
            *(f"{r[f'{stage}_ms']:.1f}" for stage in STAGES),
            f"{r['batch_edges']:,.0f}",
            ", ".join(f"{count:,.0f}" for count in r["batch_vertices"]),
            f"{r['minor_faults']:,.0f}",
            f"{r['major_faults']:.1f}",
            f"{r['anonymous_bytes'] / 2**30:.2f}",
            f"{allowed / 2**30:.2f}",
            f"{r['open_s']:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def explain(first: dict[str, Any], last: dict[str, Any]) -> list[str]:
    """What grows from the first graph to the last, and why, from the measured numbers."""

    def grows(key: str) -> float:
        return float(last[key] / first[key])

    def per_edge(result: dict[str, Any], stage: str) -> float:
        return float(result[f"{stage}_ms"] * 1e6 / result["batch_edges"])

    more_edges = grows("batch_edges")
    more_rows = last["batch_vertices"][0] / first["batch_vertices"][0]
    rows_mb = [r["batch_vertices"][0] * FEATURES * 2 / 1e6 for r in (first, last)]
    lines = [
        f"From {first['vertices'] / 1e6:g} M to {last['vertices'] / 1e6:g} M vertices a step takes {grows('step_ms'):.2f} times as long:",
        f"- work: {more_edges:.2f} times the sampled edges; {more_rows:.2f} times the distinct input vertices ({rows_mb[0]:.0f} MB "
        f"of feature rows become {rows_mb[1]:.0f} MB), since neighbourhoods overlap less in a larger graph;",
    ]
    reasons = {
        "sample": f"row pointers and neighbour lists lie in {last['topology_bytes'] / 1e9:.2f} GB in place of "
        f"{first['topology_bytes'] / 1e9:.2f} GB",
        "load": f"rows lie in {last['feature_bytes'] / 1e9:.2f} GB in place of {first['feature_bytes'] / 1e9:.2f} GB of 4 KiB pages: "
        "caches and address translation miss more often",
        "propagate": "it reads mini-batch arrays only, so what it gains beyond the edges is waiting for memory that "
        "the other stages use",
    }
    lines += [
        f"- {stage}: {grows(f'{stage}_ms'):.2f} times the time, {per_edge(first, stage):.0f} → {per_edge(last, stage):.0f} ns "
        f"a sampled edge: {reason};"
        for stage, reason in reasons.items()
    ]
    lines.append(
        f"- page faults: {first['minor_faults']:,.0f} → {last['minor_faults']:,.0f} a step, the first touch of mapped pages "
        "that are in the page cache already; they end when every page was touched."
    )
    return lines


if __name__ == "__main__":
    sys.exit(main())
