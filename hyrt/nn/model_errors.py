"""Errors of user-defined modules: results that depend on the split, invalid outputs, and torch errors. A
layer such as `torch.nn.Dropout` can be found in the module. A call of `torch.nn.functional.dropout` is
visible only in the operators that torch runs.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from hyrt.checks import check_type
from hyrt.errors import UnsupportedModelError, describe_error


def reject_batch_statistics(model: torch.nn.Module, device: str) -> None:
    """Reject a model with layers whose results depend on other rows of the mini-batch.

    Raises
    ------
    UnsupportedModelError
        If the model has a batch norm; the message names the layer and `device`.
    """
    check_type("model", model, torch.nn.Module, "pass a torch module")
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            raise UnsupportedModelError(
                f"{device} cannot train layer {name!r} ({type(module).__name__}), because its statistics "
                "over a mini-batch depend on how steps are split among trainers: use torch.nn.LayerNorm"
            )


_TORCH = str(Path(torch.__file__).parent)


class _RejectRandomOps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that rejects random operators of the thread that entered it."""

    def __init__(self, name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._name = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise UnsupportedModelError(
                f"{self._name} draws random numbers from a process-wide generator "
                f"({_module_line(sys._getframe())}), so with several trainers results would depend on how "
                "steps are split: remove this, use hyrt.nn.operators.dropout.dropout, or train on one "
                "device"
            )
        return func(*args, **(kwargs or {}))


def _module_line(frame: FrameType | None) -> str:
    """Return the innermost stack line outside of torch and this module."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith(_TORCH + "/"):
            return f"{Path(file).name}, line {frame.f_lineno}, in {frame.f_code.co_name}"
        frame = frame.f_back
    return "in torch"


class RngGuard:
    """Forward hooks that raise UnsupportedModelError if a model or its copy draws random numbers in training.

    Only the first mini-batch of each thread is checked: a module that draws random numbers does so in every
    mini-batch, and the check costs microseconds per operator.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._name = type(model).__name__
        self._per_thread = threading.local()
        # With `always_call`, the dispatch mode is left even if `forward` raises.
        self._handles = (
            model.register_forward_pre_hook(self._start_check),
            model.register_forward_hook(self._end_check, always_call=True),
        )

    def remove(self) -> None:
        """Remove the hooks of `model`, but not those of its copies."""
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


@dataclass(frozen=True, slots=True)
class _ScoresCheck:
    """Forward hook that validates outputs. Copies of a model share it, so it also checks device replicas."""

    num_scores: int | None
    more: set[str] | None

    def __call__(self, model: torch.nn.Module, arguments: tuple[Any, ...], scores: Any) -> None:
        name, targets = type(model).__name__, arguments[0][-1].num_dst
        if (
            not isinstance(scores, torch.Tensor)
            or scores.ndim != 2
            or not scores.is_floating_point()
            or scores.layout != torch.strided
        ):
            raise UnsupportedModelError(
                f"{name} returned {_describe_output(scores)}: return one floating-point tensor of scores, "
                "[targets, classes]"
            )
        _check_gradient(name, model, scores)
        if len(scores) != targets:
            raise UnsupportedModelError(
                f"{name} returned {len(scores):,} rows for {targets:,} targets: keep only the first "
                "block.num_dst rows of each block"
            )
        width = scores.shape[1]
        check_width(name, width, self.num_scores)
        if self.more is not None and self.num_scores is not None and width > self.num_scores:
            self.more.add(
                f"{name} returned {width} scores for {self.num_scores} classes, so it can predict classes "
                "that no vertex has: return one score per class"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> _ScoresCheck:
        # Replicas on devices add their messages to the same set.
        return self


def _describe_output(scores: Any) -> str:
    if scores is None:
        return "nothing"
    if not isinstance(scores, torch.Tensor):
        return f"a {type(scores).__name__}"
    layout = "" if scores.layout == torch.strided else f" and layout {scores.layout}"
    return f"{scores.dtype} of shape {list(scores.shape)}{layout}"


def _check_gradient(name: str, model: torch.nn.Module, scores: torch.Tensor) -> None:
    """Raise UnsupportedModelError if scores are on a wrong device or lack an expected gradient."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        return
    if scores.device != parameters[0].device:
        raise UnsupportedModelError(
            f"{name} returned scores on {scores.device}, but its parameters are on {parameters[0].device}: "
            "return the scores on the device of the input rows"
        )
    if torch.is_grad_enabled() and not scores.requires_grad:
        raise UnsupportedModelError(
            f"{name} returned scores without a gradient: remove detach(), .data and torch.no_grad() between "
            "its parameters and its scores"
        )


def check_width(name: str, width: int, num_scores: int | None) -> None:
    """Raise UnsupportedModelError if `width` is less than `num_scores`; None allows any width."""
    if num_scores is not None and width < num_scores:
        raise UnsupportedModelError(
            f"{name} returned {width} scores for {num_scores} classes: return one score per class"
        )


def add_output_check(
    model: torch.nn.Module, num_scores: int | None, extra_outputs: set[str] | None = None
) -> RemovableHandle:
    """Register a hook that raises UnsupportedModelError if outputs do not fit the objective.

    The last block in the first argument of `model` is the targets' block. The objective needs `num_scores`
    scores per target; None allows any number. If the model or a copy returns more, `extra_outputs` gets a
    message. Removing the returned handle ends the checks of `model`, but not of copies.

    Raises UnsupportedModelError at once if the description of the model for kernel devices has too few
    scores.
    """
    get_description = getattr(model, "description", None)
    if get_description is not None:
        try:
            last = get_description().layers[-1].products[-1]
        except UnsupportedModelError:
            pass  # If the device has its own kernels, it rejects the model later.
        else:
            check_width(type(model).__name__, len(last.weight), num_scores)
    return model.register_forward_hook(_ScoresCheck(num_scores, extra_outputs))


# Patterns of torch error messages, with the remedy for each.
_REMEDIES = (
    (
        r"same dtype|expected scalar type|dtype mismatch",
        "use one dtype for parameters and rows (feature rows are float32 unless the model converts them)",
    ),
    (
        r"leaf Variable that requires grad",
        "leave parameter changes to the optimizer instead of changing parameters in place",
    ),
    (
        r"modified by an inplace operation",
        "create a new tensor instead of using an in-place operation such as add_, += or relu_, which "
        "overwrites values that gradients need",
    ),
    (
        r"backward through the graph a second time",
        "keep only tensor.detach() between steps, or nothing, because kept values depend on which device "
        "trained which targets",
    ),
    (
        r"shapes cannot be multiplied|must match the size|size mismatch|Sizes of tensors must match",
        "set layer widths that match the data, keep only the first block.num_dst rows of each block, and "
        "keep no tensor between steps, because the number of rows differs",
    ),
    (
        r"same device|is on cpu|is not on the expected device",
        "create tensors on the device of the rows, with x.new_zeros(...) instead of torch.zeros(...)",
    ),
    (
        r"forward\(\) (takes|missing|got)",
        "define it as def forward(self, blocks, x), with the blocks of a mini-batch and the rows of the "
        "first block's sources",
    ),
)
# Pattern of Python's error message if a module expects the blocks of another library, with the remedy.
_FOREIGN_BLOCKS = (
    r"'(Tensor)?Block' object has no attribute",
    "use hyrt.from_dgl(model) if it expects DGL blocks, or read the edges from block.edge_index(), as in PyG",
)
# Exceptions that indicate a bug in the module. Failing devices raise other exceptions.
_CODE_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, ValueError)
_LIBRARIES = (Path(torch.__file__).parent, Path(inspect.getfile(UnsupportedModelError)).parent)


@contextmanager
def explain_model_errors(model: torch.nn.Module) -> Iterator[None]:
    """Explain common torch errors that a user-defined module raises within the `with` block.

    Known torch errors, and exceptions that no device raises, become UnsupportedModelError with a remedy or
    the line of user code. Other exceptions pass through, because they may be device failures.
    """
    try:
        yield
    except (RuntimeError, TypeError) as error:
        message = " ".join(describe_error(error).split())
        remedy = next((remedy for words, remedy in _REMEDIES if re.search(words, message)), None)
        if remedy is None:
            raise
        # Remove the generic hint that torch appends to the message.
        message = re.split(r"\. (?=Hint|Saved|Specify)|, which is output", message)[0].rstrip(".!")
        raise UnsupportedModelError(
            f"{type(model).__name__} failed{_place(error)} ({message}): {remedy}"
        ) from error
    except _CODE_ERRORS as error:
        place = _place(error)
        if not place:
            raise
        message = " ".join(describe_error(error).split())
        remedy = _FOREIGN_BLOCKS[1] if re.search(_FOREIGN_BLOCKS[0], message) else "fix the module there"
        raise UnsupportedModelError(f"{type(model).__name__} failed{place} ({message}): {remedy}") from error


def _place(error: BaseException) -> str:
    """Return the innermost line of user code; empty if there is none, as in errors of a backward pass."""
    user_frames: list[Any] = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(Path(frame.filename).is_relative_to(library) for library in _LIBRARIES)
        and "hyrt_devices" not in frame.filename
    ]
    return f" at {Path(user_frames[-1].filename).name}:{user_frames[-1].lineno}" if user_frames else ""
