"""What ranks compute that train their parts of a whole graph in chunks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hyrt_perfmodel.platforms.platform import Platform
from hyrt_perfmodel.workloads.workload import TrainingWorkload

from hyrt.config import Config
from hyrt.errors import ConfigError
from hyrt.predict.chunks.chunk_prediction import predict_chunks, why_not_in_chunks
from hyrt.predict.chunks.chunked_work import ChunkedWork
from hyrt.predict.chunks.predicted_chunks import ChunkPrediction


@dataclass(frozen=True, slots=True)
class RankChunks:
    """An epoch in chunks of all ranks together, as if one machine computed it."""

    prediction: ChunkPrediction
    """That machine's: it cuts vertices into as many intervals as all ranks together."""
    edges_s: float
    """Seconds of gathering along edges, with the copying for it."""
    rows_s: float
    """Seconds of all else."""
    columns: tuple[int, ...] | None
    """Columns of the rows that travel forward in each epoch, and of their gradients back; None where as many
    travel as without chunks."""


def chunks_on_ranks(
    platform: Platform, work: TrainingWorkload, config: Config, ranks: int, threads: int
) -> RankChunks | None:
    """What equal ranks compute; None where they do not train in chunks.

    Each rank cuts its own vertices into P intervals, and rows of other ranks into intervals that are no
    longer, so that chunks are those of one machine with P intervals for each rank.

    Parameters
    ----------
    platform
        The machine of one rank, with its trainers alone.
    work, config
        The work of all, and its settings.
    ranks
        How many there are.
    threads
        How many threads compute on the machine, of all its ranks.

    Raises
    ------
    ConfigError
        If such ranks cannot be predicted.
    """
    asked, kinds = config.fullgraph, {each.name.partition(":")[0] for each in config.trained_on}
    if not (asked.asks_for_chunks or len(config.trained_on) > 1 or kinds != {"cpu"}):
        return None
    if why := why_not_in_chunks(platform, work, config):
        raise ConfigError(why)
    each = asked.chunks
    if not each:
        # Where the graph fits one machine, each rank has one interval.
        alone = predict_chunks(platform, work, config)
        each = 1 if alone is None else math.ceil(alone.intervals / ranks)
    runtime = config.runtime.model_copy(update={"train_threads": threads})
    cut = asked.model_copy(update={"chunks": ranks * each})
    config = config.model_copy(update={"fullgraph": cut, "runtime": runtime})
    found = predict_chunks(platform, work, config)
    if found is None:
        raise ConfigError("no chunks fit the devices: lower model.hidden, or raise fullgraph.device_memory")
    part, computing_s = found.gather_part, found.epoch_s - found.synchronize_s
    described = ChunkedWork.of(work, config, config.trained_on[0].name)
    # Rows travel before they are multiplied, and features do so once.
    columns = None if described is None else tuple(each.gathered for each in described.layers[1:])
    return RankChunks(found, part * computing_s, (1 - part) * computing_s, columns)
