"""Detection of modules that draw from torch's random generator, in their first mini-batch.

A layer such as `torch.nn.Dropout` can be found in the module tree. A call of `torch.nn.functional.dropout` is
only visible in the operators that torch runs.
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


class _RejectRandomOps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that rejects operators drawing from a generator, on the thread that entered it."""

    def __init__(self, name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._name = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise UnsupportedModel(
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


class RefusedDraws:
    """Hooks that raise UnsupportedModel if a model or a copy on a device draws random numbers in training.

    Each calling thread is checked once: a module that draws random numbers does so in its first mini-batch,
    and a check costs microseconds per operator.

    Parameters
    ----------
    model
        Model to check; its copies share the hooks before and after `forward`.
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

    def __deepcopy__(self, memo: dict[int, Any]) -> RefusedDraws:
        return self
