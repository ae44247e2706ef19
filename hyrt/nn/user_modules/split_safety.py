"""Checks that reject modules whose results depend on the split: batch statistics, and torch's random numbers.

A layer such as `torch.nn.Dropout` can be found in the module; a call of `torch.nn.functional.dropout` is only
visible in the operators that torch runs.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hyrt.checks import check_type
from hyrt.errors import UnsupportedModelError


def reject_batch_statistics(model: torch.nn.Module, device: str) -> None:
    """Reject a model with layers whose result depends on other rows of the mini-batch.

    Raises
    ------
    UnsupportedModelError
        If the model has a batch norm; the message names the layer and `device`.
    """
    check_type("model", model, torch.nn.Module, "give a torch module")
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            raise UnsupportedModelError(
                f"layer {name!r} ({type(module).__name__}) on {device}: statistics over a mini-batch "
                "depend on the split, because no trainer sees the whole step: use torch.nn.LayerNorm"
            )


_TORCH = str(Path(torch.__file__).parent)


class _RejectRandomOps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that rejects operators drawing from a generator, on the thread that entered it."""

    def __init__(self, name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._name = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise UnsupportedModelError(
                f"{self._name} draws random numbers from one generator for the whole process "
                f"({_module_line(sys._getframe())}), so with several trainers a step would depend on "
                "the split: leave it out, use hyrt.nn.operators.dropout.dropout, or train on one device"
            )
        return func(*args, **(kwargs or {}))


def _module_line(frame: FrameType | None) -> str:
    """Return the innermost stack line outside of torch and this file."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith(_TORCH + "/"):
            return f"{Path(file).name}, line {frame.f_lineno}, in {frame.f_code.co_name}"
        frame = frame.f_back
    return "in torch"


class RngGuard:
    """Hooks that raise UnsupportedModelError if a model or a copy draws random numbers in training.

    Each calling thread is checked once: a module that draws random numbers does so in its first mini-batch,
    and a check costs microseconds per operator.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._name = type(model).__name__
        self._per_thread = threading.local()
        # always_call: leave the dispatch mode also if `forward` raises.
        self._handles = (
            model.register_forward_pre_hook(self._start_check),
            model.register_forward_hook(self._end_check, always_call=True),
        )

    def remove(self) -> None:
        """Remove the checks of `model`, but not of its copies."""
        for handle in self._handles:
            handle.remove()

    def _start_check(self, model: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        if model.training and not getattr(self._per_thread, "checked", False):
            self._per_thread.checked = True
            self._per_thread.mode = _RejectRandomOps(self._name)
            self._per_thread.mode.__enter__()

    def _end_check(self, model: torch.nn.Module, arguments: tuple[Any, ...], scores: Any) -> None:
        mode = getattr(self._per_thread, "mode", None)
        if mode is not None:
            self._per_thread.mode = None
            mode.__exit__(None, None, None)

    def __deepcopy__(self, memo: dict[int, Any]) -> RngGuard:
        return self
