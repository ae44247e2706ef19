"""Lower bounds on the stage times of a mini-batch step, based on measured rates of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hyrt.config import Config
    from hyrt.graph.graph import Graph


def lower_bounds(graph: Graph, config: Config, *, threads: int) -> dict[str, float]:
    """Return a lower bound on the time of each stage in ms: the sizes of a step divided by measured rates.

    The rates are random reads of the edge array, random reads of feature rows into cache, and the first
    layer's matrix product, each with `threads` threads. Times are CPU times with one thread, otherwise wall
    times. `serial` is the sum, because overlapping stages share the same cores.
    """
    import numpy as np
    import torch
    from hyrt_perfmodel.prediction.stages import aggregate_s, trainer_s
    from hyrt_perfmodel.workload import Workload

    from hyrt.graph.row_kernels import gather_rows
    from hyrt.nn.operators.linear import linear
    from hyrt.nn.torch_threads import use_one_torch_thread
    from hyrt.runtime.workers import Workers, use_workers
    from hyrt.sampling.neighbor_sampler import NeighborSampler

    clock = time.thread_time if threads == 1 else time.perf_counter

    def best_s(work: Callable[[], object], repeats: int = 7) -> float:
        times = []
        for _ in range(repeats):
            started = clock()
            work()
            times.append(clock() - started)
        return min(times)

    use_one_torch_thread()
    model = config.model
    with Workers(threads, "floor", on_start=use_one_torch_thread) as team:
        sampler = NeighborSampler(
            graph, graph.split("train"), config.fanouts, config.data.batch_size, config.seed
        )
        blocks = sampler.sample(0, sampler.units(0), team, in_place=False).blocks
        workload = Workload(
            vertices=(blocks[0].num_src, *(block.num_dst for block in blocks)),
            edges=tuple(block.num_edges for block in blocks),
            features=(graph.num_features, *[model.hidden] * (model.layers - 1), graph.num_classes),
            concat=model.kind == "graphsage",
        )
        draws = np.random.default_rng(0)
        picks = draws.integers(0, graph.num_edges, int(sum(workload.edges)))
        found = np.empty(len(picks), graph.topology.indices.dtype)

        def pick(start: int, stop: int) -> None:
            np.take(graph.topology.indices, picks[start:stop], out=found[start:stop], mode="clip")

        x = graph.features.values
        rows = draws.integers(0, len(x), 1 << 17).astype(np.int32)
        # Use a small output that stays in cache, so that only reading is measured.
        out = np.empty((1024, x.shape[1]), np.float32)

        def read(start: int, stop: int) -> None:
            gather_rows(x, rows[start:stop], out[: stop - start], 0, stop - start)

        tall = torch.randn(blocks[0].num_dst, workload.f_in(1))
        weight = torch.randn(model.hidden, workload.f_in(1))
        low = config.train.precision == "bf16"
        sample = best_s(lambda: team.run(pick, len(picks), 8192))
        row_bytes_per_s = len(rows) * x.shape[1] * 4 / best_s(lambda: team.run(read, len(rows), 1024))
        with use_workers(team), torch.no_grad():
            macs_per_s = tall.numel() * len(weight) / best_s(lambda: linear(tall, weight, low_precision=low))
    load = aggregate_s(workload, 1, row_bytes_per_s)
    # On the CPU, the load stage includes the first aggregation.
    parts = {
        "sample": sample,
        "load": load,
        "propagate": trainer_s(workload, row_bytes_per_s, macs_per_s) - load,
    }
    parts["serial"] = sum(parts.values())
    return {name: round(1e3 * seconds, 2) for name, seconds in parts.items()}
