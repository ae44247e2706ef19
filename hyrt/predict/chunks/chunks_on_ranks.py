"""Prediction of ranks that train their partitions of a full graph in chunks."""

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
    """Epoch in chunks of all ranks together, as if computed on one machine."""

    prediction: ChunkPrediction
    """Prediction of that machine, which has as many intervals as all ranks together."""
    edges_s: float
    """Seconds of gathering along edges, including its copies."""
    rows_s: float
    """Seconds of all other work."""
    columns: tuple[int, ...] | None
    """Columns of the rows exchanged forward per epoch, and of their gradients backward; None if they are the
    same as without chunks."""


def chunks_on_ranks(
    platform: Platform, work: TrainingWorkload, config: Config, ranks: int, threads: int
) -> RankChunks | None:
    """Predict the compute of equal ranks; None if they do not train in chunks.

    Each rank divides its vertices into P intervals, and remote rows into intervals that are no longer, so
    that the chunks are those of one machine with P intervals per rank.

    Parameters
    ----------
    platform
        Machine of one rank, with only its trainers.
    work, config
        Work of all ranks, and its settings.
    ranks
        Number of ranks.
    threads
        Threads that compute on the machine, for all its ranks.

    Raises
    ------
    ConfigError
        If such ranks cannot be predicted.
    """
    settings, device_kinds = (
        config.fullgraph,
        {chunks_per_rank.name.partition(":")[0] for chunks_per_rank in config.trained_on},
    )
    if not (settings.asks_for_chunks or len(config.trained_on) > 1 or device_kinds != {"cpu"}):
        return None
    if reason := why_not_in_chunks(platform, work, config):
        raise ConfigError(reason)
    chunks_per_rank = settings.chunks
    if not chunks_per_rank:
        # If the graph fits one machine, each rank has one interval.
        single = predict_chunks(platform, work, config)
        chunks_per_rank = 1 if single is None else math.ceil(single.intervals / ranks)
    runtime = config.runtime.model_copy(update={"train_threads": threads})
    cut = settings.model_copy(update={"chunks": ranks * chunks_per_rank})
    config = config.model_copy(update={"fullgraph": cut, "runtime": runtime})
    prediction = predict_chunks(platform, work, config)
    if prediction is None:
        raise ConfigError("no chunks fit the devices: lower model.hidden, or raise fullgraph.device_memory")
    gather_fraction, computing_s = prediction.gather_part, prediction.epoch_s - prediction.synchronize_s
    described = ChunkedWork.of(work, config, config.trained_on[0].name)
    # Rows are exchanged before they are multiplied, and features only once.
    columns = (
        None
        if described is None
        else tuple(chunks_per_rank.gathered for chunks_per_rank in described.layers[1:])
    )
    return RankChunks(prediction, gather_fraction * computing_s, (1 - gather_fraction) * computing_s, columns)
