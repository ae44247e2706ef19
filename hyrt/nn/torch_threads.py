"""How many threads torch's own operators use, where hyrt's teams share the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hyrt.nn.model import GNN


def use_one_torch_thread() -> None:
    """For threads of a team: the team is the parallelism."""
    torch.set_num_threads(1)


def threads_for(model: torch.nn.Module, count: int) -> int:
    """Torch's threads for a model: models of hyrt.nn share work over the team, others use torch's own."""
    return 1 if isinstance(model, GNN) else count


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let the calling thread's torch operators use `count` threads inside the block.

    The rounding of some operators (LayerNorm's weight gradient) depends on the count, so equal runs need it
    equal.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
