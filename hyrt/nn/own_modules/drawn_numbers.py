"""Whether a module draws random numbers of torch's, asked at its first mini-batch.

A layer such as `torch.nn.Dropout` shows in the module. A call of `torch.nn.functional.dropout` does not: only
what torch then runs tells of it.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hyrt.errors import UnsupportedModel

_TORCH = str(Path(torch.__file__).parent)


class _Refusal(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses the operators of torch that draw from a generator, on the thread that entered it."""

    def __init__(self, name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._name = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise UnsupportedModel(
                f"{self._name} draws random numbers from one generator for the whole process "
                f"({_line_of_the_module(sys._getframe())}), so with several trainers a step would depend on "
                "the split: leave it out, use hyrt.nn.operators.dropout.dropout, or train on one device"
            )
        return func(*args, **(kwargs or {}))


def _line_of_the_module(frame: FrameType | None) -> str:
    """The innermost line of the calls that is not of torch or of this file."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith(_TORCH + "/"):
            return f"{Path(file).name}, line {frame.f_lineno}, in {frame.f_code.co_name}"
        frame = frame.f_back
    return "in torch"


class RefusedDraws:
    """Lets a model, and its copies on devices, raise UnsupportedModel where it draws while it is trained.

    Each thread that calls it is asked once: a module that draws does so for its first mini-batch, and to ask
    costs microseconds for each operator.

    Parameters
    ----------
    model
        Its copies share the hooks before and after `forward`.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._name = type(model).__name__
        self._of_thread = threading.local()
        # The end comes after errors of `forward`, too.
        self._handles = (
            model.register_forward_pre_hook(self._enter),
            model.register_forward_hook(self._leave, always_call=True),
        )

    def remove(self) -> None:
        """Ask `model` no longer; its copies are."""
        for handle in self._handles:
            handle.remove()

    def _enter(self, model: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        if model.training and not getattr(self._of_thread, "asked", False):
            self._of_thread.asked = True
            self._of_thread.refusal = _Refusal(self._name)
            self._of_thread.refusal.__enter__()

    def _leave(self, model: torch.nn.Module, arguments: tuple[Any, ...], scores: Any) -> None:
        refusal = getattr(self._of_thread, "refusal", None)
        if refusal is not None:
            self._of_thread.refusal = None
            refusal.__exit__(None, None, None)

    def __deepcopy__(self, memo: dict[int, Any]) -> RefusedDraws:
        return self
