"""A model of layers of a user's own: the host computes vertices, and a device loops over edges."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hyrt.device import StepResult
from hyrt.fullgraph.chunks.chunk_options import ChunkOptions
from hyrt.fullgraph.host_budget import HostBudget
from hyrt.fullgraph.saga.chunked_loops import ChunkedLoops
from hyrt.fullgraph.saga.loop_room import LoopRoom
from hyrt.machine.workers import Workers
from hyrt.nn.fused.loop_runner import loops_run_by
from hyrt.objective import Objective
from hyrt.sampling.minibatch import MiniBatch
from hyrt_devices.host_model import HostModel


class HostSaga:
    """Steps of such a model.

    Parameters
    ----------
    model
        A model that `hyrt.nn.saga.checks.on_devices.check_loops` lets pass.
    workers
        The team of threads that computes vertices.
    room
        The device's memory and queue.
    options, budget
        How whole graphs are cut, and how much host memory may be used.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        workers: Workers,
        room: LoopRoom,
        options: ChunkOptions,
        budget: HostBudget,
    ) -> None:
        self._workers = workers
        self._model = HostModel(model, workers, budget)
        self._loops = ChunkedLoops(room, options, budget)

    @property
    def num(self) -> int | None:
        """How many intervals the vertices are cut into; None before the first step over a whole graph."""
        return self._loops.num

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        """Take new weights."""
        self._model.update(parameters)

    def step(self, batch: MiniBatch, objective: Objective) -> StepResult:
        """Loss and gradients of a mini-batch, or of a whole graph."""
        with loops_run_by(self._loops):
            return self._model.step(batch, objective)

    def release(self) -> None:
        """Give all memory back."""
        self._loops.release()

    def close(self) -> None:
        """Give all memory back, and end the threads."""
        self._loops.release()
        self._workers.close()
