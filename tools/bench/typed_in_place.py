"""What R-GCN's first sums cost where tables are read in place, and where their rows are gathered first.

Steps of one thread, in turn, over the graph of `typed_speed.py`; the clock counts what the thread computes.

    python tools/bench/typed_in_place.py --edges 8_000_000
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from typed_speed import BATCH, FANOUT, write_graph

from hyrt.machine.this_process.process_settings import prepare_process

if TYPE_CHECKING:
    from hyrt.machine.workers import Workers
    from hyrt.pipeline.trainer import InputPlan

STAGES = ("sample", "load", "forward", "backward", "Adam")


def compared(folder: Path, steps: int) -> None:
    """Print the lower quartiles of both."""
    import torch

    from hyrt.config import build_config
    from hyrt.graph import open_graph
    from hyrt.machine.buffer_pool import BufferPool
    from hyrt.machine.workers import Workers, working
    from hyrt.pipeline.load import Loader
    from hyrt.pipeline.trainer import InputPlan
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
        at = [clock()]
        batch: Any = sampler.sample(number, sampler.units(number), workers, in_place=plan.in_place)
        at.append(clock())
        loader.load(batch, plan, workers)
        at.append(clock())
        optimizer.zero_grad(set_to_none=True)
        labels = torch.from_numpy(np.array(batch.labels))
        loss = torch.nn.functional.cross_entropy(model(batch.blocks, batch.inputs), labels)
        at.append(clock())
        loss.backward()
        at.append(clock())
        optimizer.step()
        at.append(clock())
        batch.release()
        return np.diff(at).tolist()

    plans = {"gathered": InputPlan("typed"), "in place": InputPlan("typed", leaves_tables=True)}
    spent: dict[str, list[list[float]]] = {name: [] for name in plans}
    with Workers(1, "stage", pool=BufferPool()) as workers, working(workers):
        for number in range(steps):
            for name, plan in plans.items():
                spent[name].append(step(number, workers, plan))
    for name, rows in spent.items():
        # The first ones compile, and make the buffers.
        low = 1e3 * np.quantile(np.array(rows)[5:], 0.25, axis=0)
        told = ", ".join(f"{stage} {ms:.1f}" for stage, ms in zip(STAGES, low.tolist(), strict=True))
        print(f"{name}: {1e3 * np.quantile(np.array(rows)[5:].sum(1), 0.25):.1f} ms of a core ({told})")


def main() -> None:
    """Draw the graph, and compare."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--edges", type=int, default=8_000_000)
    asked.add_argument("--steps", type=int, default=45)
    given = asked.parse_args()
    prepare_process()
    with tempfile.TemporaryDirectory(prefix="hyrt-typed-") as name:
        folder = Path(name) / "graph"
        write_graph(folder, given.edges, 10 * BATCH)
        compared(folder, given.steps)


if __name__ == "__main__":
    main()
