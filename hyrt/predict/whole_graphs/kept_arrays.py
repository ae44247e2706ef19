"""What a run on a whole graph keeps in memory, array by array, before it is there."""

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
    """The bytes of each array, by a name for people.

    Parameters
    ----------
    walk
        After a step and an evaluation.
    threads
        Threads that compute chunks of rows.
    """
    plan, sizes = walk.plan, walk.sizes
    numbers = sum(each.numel() for each in plan.model.parameters())
    arrays = {
        **sizes.held,
        "vertices, degrees, their factors": _vertex_bytes(plan, sizes),
        **_read_on_edges(plan, sizes),
        **_beside(plan, sizes),
        **walk.pool.arrays,
        "chunks of rows, at most": _chunk_bytes(plan, sizes, threads),
        "chunks of edges, at most": _edge_chunk_bytes(plan, sizes, threads),
        "parameters, gradients, optimizer": 6.0 * plan.dtype.itemsize * numbers,
    }
    return {name: size for name, size in arrays.items() if size}


def _vertex_bytes(plan: ChainPlan, sizes: WholeGraphSizes) -> float:
    """Numbers of the vertices, twice; degrees; where a vertex is among the targets; factors of sums."""
    numbers, factors = 3 + (sizes.targets < sizes.vertices), 0
    for i, parts in enumerate(plan.parts):
        what = parts.gather
        if isinstance(what, SagaSum):
            factors += plan.dtype.itemsize * (what.program.accumulate == "mean")
        if not isinstance(what, Aggregation) or what.reduce == "max":
            continue
        # GCN's factors of rows and sources are the topology's own.
        scales = (what.reduce == "gcn" and i == 0) + (what.reduce == "mean") + (what.self_path == "add")
        factors += plan.dtype.itemsize * scales
    return float(sizes.vertices * (numbers * _INT32 + factors))


def _read_on_edges(plan: ChainPlan, sizes: WholeGraphSizes) -> dict[str, float]:
    """What loops over edges read of degrees and of types, computed once."""
    found: dict[str, float] = {}
    for i, parts in enumerate(plan.parts, 1):
        if isinstance(parts.gather, SagaSum):
            program, item = parts.gather.program, plan.dtype.itemsize
            of_ends = sum(each.width for end in _ENDS for each in program.of_end(end, fixed=True))
            of_types = sum(each.width for each in program.of_end("edge", fixed=True))
            found[f"what layer {i} makes of degrees"] = float(sizes.vertices * of_ends * item)
            found[f"what layer {i} makes of types of edges"] = float(sizes.edges * of_types * item)
    return found


def _beside(plan: ChainPlan, sizes: WholeGraphSizes) -> dict[str, float]:
    """What is kept, or needed for a while, beside the matrices that are recycled."""
    item, num = plan.dtype.itemsize, sizes.vertices
    found: dict[str, float] = {}
    some = sizes.targets < sizes.vertices
    if some and sizes.target_edges <= MOST_EDGES * sizes.edges:
        starts = _INT32 if sizes.target_edges < 2**31 else _INT64
        found["edges into targets, by source"] = starts * (num + 1) + _INT32 * sizes.target_edges
    widths, last = plan.model.architecture.widths, plan.stages[-1]
    if last.reads_own:
        found["rows of the targets"] = float(max(sizes.targets, sizes.scored) * widths[-2] * item)
    found["scores of an evaluation"] = float(sizes.scored * widths[-1] * _FLOAT + num * _INT32)
    return found


def _chunk_bytes(plan: ChainPlan, sizes: WholeGraphSizes, threads: int) -> float:
    """What the threads compute at once, with gradients."""
    numbers = [stage_work(stage, sizes.row_entries).values for stage in plan.stages]
    rows = min(plan.chunk_rows * threads, sizes.vertices)
    kept = sum(numbers[:-1]) * sizes.vertices if plan.keeps_rows else 0.0
    return max(2 * max(numbers) * rows, kept) * plan.dtype.itemsize


def _edge_chunk_bytes(plan: ChainPlan, sizes: WholeGraphSizes, threads: int) -> float:
    """What the threads compute at once of edges, with gradients, where torch computes them."""
    numbers = [0]
    for parts in plan.parts:
        if isinstance(parts.gather, SagaSum) and parts.gather.program.unfused:
            program = parts.gather.program
            numbers.append(sum(each.width for each in program.given) + program.edge_numbers)
    edges = min(CHUNK_EDGES * threads, sizes.edges)
    return 2.0 * max(numbers) * edges * plan.dtype.itemsize
