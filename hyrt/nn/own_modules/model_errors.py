"""What torch raises in a module of the user's, in words that name the module, its line and the remedy."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hyrt.errors import UnsupportedModel, describe

# Pieces of torch's messages, and what to do about each.
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
# What Python says of a module that takes hyrt's blocks for those of another library.
_OF_FOREIGN_BLOCKS = (
    r"'(Tensor)?Block' object has no attribute",
    "hyrt gives blocks of its own: give hyrt.from_dgl(model) for DGL's, or take the edges from "
    "block.edge_index(), as PyG has them",
)
# What Python raises where code is wrong; a device that fails raises others.
_OF_CODE = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, ValueError)
_LIBRARIES = (Path(torch.__file__).parent, Path(__file__).parents[2])


@contextmanager
def model_errors_named(model: torch.nn.Module) -> Iterator[None]:
    """Name the module and the remedy where torch says what is usually wrong with a user's module.

    Parameters
    ----------
    model
        What is called, or differentiated, in the block.

    Raises
    ------
    UnsupportedModel
        With the remedy; or with the line, where the user's own code raises what no device raises. Whatever
        else is raised stays as it is: the device may have failed.
    """
    try:
        yield
    except (RuntimeError, TypeError) as error:
        told = " ".join(describe(error).split())
        remedy = next((remedy for words, remedy in _REMEDIES if re.search(words, told)), None)
        if remedy is None:
            raise
        # What follows is a hint of torch's that its users know.
        told = re.split(r"\. (?=Hint|Saved|Specify)|, which is output", told)[0].rstrip(".!")
        raise UnsupportedModel(f"{type(model).__name__}{_place(error)}: {told}: {remedy}") from error
    except _OF_CODE as error:
        place = _place(error)
        if not place:
            raise
        told = " ".join(describe(error).split())
        remedy = _OF_FOREIGN_BLOCKS[1] if re.search(_OF_FOREIGN_BLOCKS[0], told) else "mend the module there"
        raise UnsupportedModel(f"{type(model).__name__}{place}: {told}: {remedy}") from error


def _place(error: BaseException) -> str:
    """The last line of the user's own; empty where none was running, as in a backward pass."""
    own: list[Any] = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(Path(frame.filename).is_relative_to(library) for library in _LIBRARIES)
        and "hyrt_devices" not in frame.filename
    ]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
