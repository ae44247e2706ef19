"""Cost of R-GCN's first aggregation if it reads feature tables in place, compared with gathering rows first.

Single-thread steps on the graph of `hetero_speed.py` alternate; times are CPU times of the thread.

    python tools/bench/hetero_in_place.py --edges 8_000_000
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from hetero_speed import BATCH, FANOUT, write_graph

from hyrt.runtime.process_setup import prepare_process

if TYPE_CHECKING:
    from hyrt.pipeline.trainer import InputPlan
    from hyrt.runtime.workers import Workers

STAGES = ("sample", "load", "forward", "backward", "Adam")


def compare(folder: Path, steps: int) -> None:
    """Time both methods, and print the lower quartiles."""
    import torch

    from hyrt.config import build_config
    from hyrt.graph import open_graph
    from hyrt.pipeline.load import Loader
    from hyrt.pipeline.trainer import InputPlan
    from hyrt.runtime.buffer_pool import BufferPool
    from hyrt.runtime.workers import Workers, use_workers
    from hyrt.training.setup import build_model, build_sampler

    torch.set_num_threads(1)
    graph, clock = open_graph(str(folder)), time.thread_time
    config = build_config(
        {
            "model": {"kind": "rgcn", "hidden": 64, "layers": 2},
            "sampler": {"fanout": FANOUT},
            "data": {"batch_size": BATCH},
        }
    )
    sampler = build_sampler(config, graph, graph.split("train"))
    model, loader = build_model(config, graph).train(), Loader(graph.features)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3, fused=True)

    def step(number: int, workers: Workers, plan: InputPlan) -> list[float]:
        times = [clock()]
        batch: Any = sampler.sample(number, sampler.units(number), workers, in_place=plan.in_place)
        times.append(clock())
        loader.load(batch, plan, workers)
        times.append(clock())
        optimizer.zero_grad(set_to_none=True)
        labels = torch.from_numpy(np.array(batch.labels))
        loss = torch.nn.functional.cross_entropy(model(batch.blocks, batch.inputs), labels)
        times.append(clock())
        loss.backward()
        times.append(clock())
        optimizer.step()
        times.append(clock())
        batch.release()
        return np.diff(times).tolist()

    plans = {"gathered": InputPlan("hetero"), "in place": InputPlan("hetero", leaves_tables=True)}
    spent: dict[str, list[list[float]]] = {name: [] for name in plans}
    with Workers(1, "stage", pool=BufferPool()) as workers, use_workers(workers):
        for number in range(steps):
            for name, plan in plans.items():
                spent[name].append(step(number, workers, plan))
    for name, rows in spent.items():
        # Skip the first steps, which compile kernels and allocate buffers.
        low = 1e3 * np.quantile(np.array(rows)[5:], 0.25, axis=0)
        stage_text = ", ".join(f"{stage} {ms:.1f}" for stage, ms in zip(STAGES, low.tolist(), strict=True))
        print(f"{name}: {1e3 * np.quantile(np.array(rows)[5:].sum(1), 0.25):.1f} ms of a core ({stage_text})")


def main() -> None:
    """Generate the graph, and compare both methods."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--edges", type=int, default=8_000_000)
    parser.add_argument("--steps", type=int, default=45)
    options = parser.parse_args()
    prepare_process()
    with tempfile.TemporaryDirectory(prefix="hyrt-hetero-") as name:
        folder = Path(name) / "graph"
        write_graph(folder, options.edges, 10 * BATCH)
        compare(folder, options.steps)


if __name__ == "__main__":
    main()
