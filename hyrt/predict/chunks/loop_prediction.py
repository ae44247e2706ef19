"""Prediction of an epoch in chunks for models whose vertex functions run on the host and whose edge loops run
on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hyrt_perfmodel.assignment import Threads
from hyrt_perfmodel.chunks.chunked_epoch import ChunkedEpoch
from hyrt_perfmodel.chunks.queued_tasks import TaskTimes
from hyrt_perfmodel.platforms.platform import Platform, PlatformTrainer
from hyrt_perfmodel.prediction.extra_terms import Terms
from hyrt_perfmodel.prediction.stage_times import StepModel
from hyrt_perfmodel.workloads.workload import TrainingWorkload

from hyrt.config import Config
from hyrt.predict.chunks.kept_in_file import file_bytes, file_s
from hyrt.predict.chunks.predicted_chunks import ChunkPrediction

_BYTES_PER_GIB = 2**30


def predict_loops(
    platform: Platform,
    work: TrainingWorkload,
    config: Config,
    trainers: Sequence[PlatformTrainer],
    synchronize_s: float,
    relative_error: float,
) -> ChunkPrediction | None:
    """Predict an epoch on the CPU; None for other devices, or if its loops were not measured.

    The CPU runs the loops of an interval over rows in memory, so nothing is copied, and the computation does
    not depend on the number of intervals.

    Parameters
    ----------
    platform, work, config
        The machine, the work and its settings.
    trainers
        Devices that train.
    synchronize_s, relative_error
        Fields of the prediction.
    """
    if not all(trainer.is_host for trainer in trainers) or work.whole is None:
        return None
    [trainer] = trainers
    count = config.runtime.train_threads or platform.host.cores or 1
    threads = Threads(sample=1, load=1, train=count)
    step = work.at(float(work.batch_size))
    step_times = StepModel(platform, work, Terms()).whole_s(trainer, step, threads, looped=True)
    if step_times is None:
        return None
    gather_s, rest_s = step_times
    vertices = round(step.vertices[0])
    num = max(1, min(config.fullgraph.chunks, vertices))
    memory_gib = platform.host.memory_gib
    swapped = work.whole(math.inf if memory_gib is None else memory_gib * _BYTES_PER_GIB, count).matrices
    seconds = gather_s + rest_s
    dominating = ("reading rows along edges", gather_s) if gather_s >= rest_s else ("products", rest_s)
    return ChunkPrediction(
        device=trainer.name,
        intervals=num,
        vertices=math.ceil(vertices / num),
        columns=(num,),
        in_flight=1,
        epoch=ChunkedEpoch(
            seconds=seconds, copy_s=0.0, compute_s=seconds, hidden=1.0, tasks=(), times=TaskTimes((), ())
        ),
        synchronize_s=synchronize_s,
        relative_error=relative_error,
        gather_part=gather_s / seconds,
        file_s=file_s(config, platform.host, work, sum(swapped.values())),
        swapped=swapped,
        file_bytes=file_bytes(config, sum(swapped.values())),
        bound=f"computing: {dominating[0]} {dominating[1] / seconds:.0%}",
    )
