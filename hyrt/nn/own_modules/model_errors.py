"""Explanations of torch errors in user-defined modules, with the module, its line and a fix."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hyrt.errors import UnsupportedModel, describe

# Patterns of torch error messages, and a fix for each.
_REMEDIES = (
    (
        r"same dtype|expected scalar type|dtype mismatch",
        "bring parameters and rows to one dtype: rows of features are float32 unless the model converts them",
    ),
    (
        r"leaf Variable that requires grad",
        "it changes a parameter in place: leave the values of parameters to the optimizer",
    ),
    (
        r"modified by an inplace operation",
        "an operation in place, such as add_, += or relu_, has overwritten values that gradients need: make "
        "a new tensor instead",
    ),
    (
        r"backward through the graph a second time",
        "it keeps a tensor of an earlier step: keep tensor.detach() instead, or nothing, since what is kept "
        "from step to step depends on which device trained which targets",
    ),
    (
        r"shapes cannot be multiplied|must match the size|size mismatch|Sizes of tensors must match",
        "give its layers the widths of the data, keep the first block.num_dst rows of each block, and keep "
        "no tensor from step to step, as the numbers of rows differ",
    ),
    (
        r"same device|is on cpu|is not on the expected device",
        "make tensors on the device of the rows: x.new_zeros(...), not torch.zeros(...)",
    ),
    (
        r"forward\(\) (takes|missing|got)",
        "its forward takes the blocks of a mini-batch and the rows of the first one's sources: "
        "def forward(self, blocks, x)",
    ),
)
# Pattern of the Python error if a module expects the blocks of another library, and a fix.
_FOREIGN_BLOCKS = (
    r"'(Tensor)?Block' object has no attribute",
    "hyrt gives blocks of its own: give hyrt.from_dgl(model) for DGL's, or take the edges from "
    "block.edge_index(), as PyG has them",
)
# Exceptions that indicate a bug in the module; failing devices raise other exceptions.
_CODE_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, ValueError)
_LIBRARIES = (Path(torch.__file__).parent, Path(__file__).parents[2])


@contextmanager
def model_errors_named(model: torch.nn.Module) -> Iterator[None]:
    """Explain common torch errors in a user-defined module, with the module and a fix.

    Parameters
    ----------
    model
        The module that is called, or differentiated, in the `with` block.

    Raises
    ------
    UnsupportedModel
        With the fix for a known torch error, or with the line of user code that raised an exception that no
        device raises. Other exceptions pass through, since the device may have failed.
    """
    try:
        yield
    except (RuntimeError, TypeError) as error:
        message = " ".join(describe(error).split())
        remedy = next((remedy for words, remedy in _REMEDIES if re.search(words, message)), None)
        if remedy is None:
            raise
        # Drop torch's generic hint after the message.
        message = re.split(r"\. (?=Hint|Saved|Specify)|, which is output", message)[0].rstrip(".!")
        raise UnsupportedModel(f"{type(model).__name__}{_place(error)}: {message}: {remedy}") from error
    except _CODE_ERRORS as error:
        place = _place(error)
        if not place:
            raise
        message = " ".join(describe(error).split())
        remedy = _FOREIGN_BLOCKS[1] if re.search(_FOREIGN_BLOCKS[0], message) else "mend the module there"
        raise UnsupportedModel(f"{type(model).__name__}{place}: {message}: {remedy}") from error


def _place(error: BaseException) -> str:
    """Return the innermost line of user code; empty if there is none, as in a backward pass."""
    user_frames: list[Any] = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(Path(frame.filename).is_relative_to(library) for library in _LIBRARIES)
        and "hyrt_devices" not in frame.filename
    ]
    return f" ({Path(user_frames[-1].filename).name}:{user_frames[-1].lineno})" if user_frames else ""
