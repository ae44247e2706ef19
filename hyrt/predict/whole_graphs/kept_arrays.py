"""Memory of a full-graph run, per array, before the run starts."""

from __future__ import annotations

from hyrt.fullgraph.destinations import MOST_EDGES
from hyrt.fullgraph.plan import ChainPlan
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.fused.form import End
from hyrt.nn.saga.edge_chunks import CHUNK_EDGES
from hyrt.nn.saga.gather import SagaSum
from hyrt.predict.whole_graphs.step_walk import StepWalk, stage_work
from hyrt.predict.whole_graphs.whole_graph_sizes import WholeGraphSizes

_INT32, _INT64, _FLOAT = 4, 8, 4
_ENDS: tuple[End, ...] = ("source", "destination")


def kept_arrays(walk: StepWalk, threads: int) -> dict[str, float]:
    """Return the bytes of each array, by display name.

    Parameters
    ----------
    walk
        Dry run after a step and an evaluation.
    threads
        Threads that compute chunks of rows.
    """
    plan, sizes = walk.plan, walk.sizes
    numbers = sum(parameter.numel() for parameter in plan.model.parameters())
    arrays = {
        **sizes.held,
        "vertices, degrees, their factors": _vertex_bytes(plan, sizes),
        **_loop_input_bytes(plan, sizes),
        **_unpooled_bytes(plan, sizes),
        **walk.pool.arrays,
        "chunks of rows, at most": _chunk_bytes(plan, sizes, threads),
        "chunks of edges, at most": _edge_chunk_bytes(plan, sizes, threads),
        "parameters, gradients, optimizer": 6.0 * plan.dtype.itemsize * numbers,
    }
    return {name: size for name, size in arrays.items() if size}


def _vertex_bytes(plan: ChainPlan, sizes: WholeGraphSizes) -> float:
    """Return the bytes of two vertex numberings, degrees, target positions, and factors of sums."""
    numbers, factors = 3 + (sizes.targets < sizes.vertices), 0
    for i, parts in enumerate(plan.parts):
        gather = parts.gather
        if isinstance(gather, SagaSum):
            factors += plan.dtype.itemsize * (gather.program.accumulate == "mean")
        if not isinstance(gather, Aggregation) or gather.reduce == "max":
            continue
        # The topology holds GCN's factors of rows and sources.
        scales = (gather.reduce == "gcn" and i == 0) + (gather.reduce == "mean") + (gather.self_path == "add")
        factors += plan.dtype.itemsize * scales
    return float(sizes.vertices * (numbers * _INT32 + factors))


def _loop_input_bytes(plan: ChainPlan, sizes: WholeGraphSizes) -> dict[str, float]:
    """Return the bytes of degree and edge type values that loops read, which are computed once."""
    arrays: dict[str, float] = {}
    for i, parts in enumerate(plan.parts, 1):
        if isinstance(parts.gather, SagaSum):
            program, item = parts.gather.program, plan.dtype.itemsize
            end_width = sum(value.width for end in _ENDS for value in program.of_end(end, fixed=True))
            type_width = sum(value.width for value in program.of_end("edge", fixed=True))
            arrays[f"what layer {i} makes of degrees"] = float(sizes.vertices * end_width * item)
            arrays[f"what layer {i} makes of types of edges"] = float(sizes.edges * type_width * item)
    return arrays


def _unpooled_bytes(plan: ChainPlan, sizes: WholeGraphSizes) -> dict[str, float]:
    """Return the bytes of arrays outside the matrix pool, cached or temporary."""
    item, num = plan.dtype.itemsize, sizes.vertices
    arrays: dict[str, float] = {}
    has_fewer_targets = sizes.targets < sizes.vertices
    if has_fewer_targets and sizes.target_edges <= MOST_EDGES * sizes.edges:
        starts = _INT32 if sizes.target_edges < 2**31 else _INT64
        arrays["edges into targets, by source"] = starts * (num + 1) + _INT32 * sizes.target_edges
    widths, last = plan.model.architecture.widths, plan.stages[-1]
    if last.reads_own:
        arrays["rows of the targets"] = float(max(sizes.targets, sizes.scored) * widths[-2] * item)
    arrays["scores of an evaluation"] = float(sizes.scored * widths[-1] * _FLOAT + num * _INT32)
    return arrays


def _chunk_bytes(plan: ChainPlan, sizes: WholeGraphSizes, threads: int) -> float:
    """Return the bytes of the row chunks that threads compute concurrently, with gradients."""
    numbers = [stage_work(stage, sizes.row_entries).values for stage in plan.stages]
    rows = min(plan.chunk_rows * threads, sizes.vertices)
    saved = sum(numbers[:-1]) * sizes.vertices if plan.keeps_rows else 0.0
    return max(2 * max(numbers) * rows, saved) * plan.dtype.itemsize


def _edge_chunk_bytes(plan: ChainPlan, sizes: WholeGraphSizes, threads: int) -> float:
    """Return the bytes of the edge chunks that threads compute concurrently with torch, with gradients."""
    numbers = [0]
    for parts in plan.parts:
        if isinstance(parts.gather, SagaSum) and parts.gather.program.unfused:
            program = parts.gather.program
            numbers.append(sum(value.width for value in program.given) + program.edge_numbers)
    edges = min(CHUNK_EDGES * threads, sizes.edges)
    return 2.0 * max(numbers) * edges * plan.dtype.itemsize
