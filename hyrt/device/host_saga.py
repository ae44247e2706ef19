"""A model whose vertices the host computes, and whose edges are loops of a device, or of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from hyrt.device import StepResult
from hyrt.device.host_model import HostModel
from hyrt.fullgraph.chunks.chunk_options import ChunkOptions
from hyrt.fullgraph.host_budget import HostBudget
from hyrt.fullgraph.saga.chunked_loops import ChunkedLoops, LoopMember
from hyrt.fullgraph.saga.host_loops import HostLoops
from hyrt.fullgraph.unfinished.step_keeper import Array, KeptStep, StepKeeper, StepPosition
from hyrt.machine.workers import Workers
from hyrt.nn.fused.loop_runner import loops_run_by
from hyrt.objective import Objective
from hyrt.sampling.minibatch import MiniBatch


class HostSaga:
    """Steps of such a model.

    Parameters
    ----------
    model
        A model that `hyrt.nn.saga.checks.on_devices.check_loops` lets pass.
    workers
        The team of threads that computes vertices.
    members
        What runs the loops.
    options, budget
        How whole graphs are cut, and how much host memory may be used.
    shares
        How fast each member is, in any unit.
    keeper
        Keeps what is done of a long step over a whole graph; None keeps nothing.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        workers: Workers,
        members: Sequence[LoopMember],
        options: ChunkOptions,
        budget: HostBudget,
        shares: Sequence[float] = (1.0,),
        keeper: StepKeeper | None = None,
    ) -> None:
        self._workers = workers
        self._loops = ChunkedLoops(members, options, budget, shares)
        told = {
            "devices": ["cpu" if isinstance(each, HostLoops) else each.name for each in members],
            "shares": list(shares),
            "order": options.order,
            "chunks": options.num,
        }
        cut = None if keeper is None else _KeptCut(keeper, self._loops)
        self._model = HostModel(model, workers, budget, cut, told)

    @property
    def num(self) -> int | None:
        """How many intervals the vertices are cut into; None before the first step over a whole graph."""
        return self._loops.num

    @property
    def parameters(self) -> list[torch.Tensor]:
        """Copies of the present weights."""
        return [each.detach().clone() for each in self._model.parameters]

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        """Take new weights."""
        self._model.update(parameters)

    def step(self, batch: MiniBatch, objective: Objective) -> StepResult:
        """Loss and gradients of a mini-batch, or of a whole graph."""
        self._loops.begin()
        with loops_run_by(self._loops):
            result = self._model.step(batch, objective)
        if batch.whole is None:
            return result
        return replace(result, chunks=self._loops.figures(*self._model.swapped_bytes))

    def release(self) -> None:
        """Give all memory back."""
        self._loops.release()

    def close(self) -> None:
        """Give all memory back, and end the threads."""
        self._loops.release()
        self._workers.close()


@dataclass(frozen=True, slots=True)
class _KeptCut:
    """A `StepKeeper` that also keeps into how many intervals loops are cut, on which bits depend."""

    keeper: StepKeeper
    loops: ChunkedLoops

    @property
    def is_due(self) -> bool:
        return self.keeper.is_due

    @property
    def stops(self) -> bool:
        return self.keeper.stops

    def keep(self, position: StepPosition, matrices: Mapping[str, Array]) -> None:
        rest = {**position.rest, "least intervals": self.loops.least}
        self.keeper.keep(replace(position, rest=rest), matrices)

    def begun(self, step: int) -> KeptStep | None:
        kept = self.keeper.begun(step)
        if kept is not None:
            self.loops.cut_at_least(int(kept.position.rest.get("least intervals", 1)))
        return kept

    def begins(self, plan: Mapping[str, Any], kept: KeptStep | None) -> None:
        self.keeper.begins(plan, kept)

    def moved(self) -> None:
        self.keeper.moved()
