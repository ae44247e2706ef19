"""hyrt trains graph neural networks on one heterogeneous machine, in one exact synchronous step.

graph = hyrt.load("cora.npz", normalize="row")
result = hyrt.train(graph, model="gcn", train={"epochs": 50})
result.metrics["test"]["accuracy"], result.model
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from hyrt.machine.kernel_cache import ensure_kernel_cache

if TYPE_CHECKING:
    from hyrt.api import load, train
    from hyrt.config import Config
    from hyrt.graph.graph import Graph
    from hyrt.training.train import TrainResult

__all__ = ["Config", "Graph", "TrainResult", "__version__", "load", "train"]

try:
    __version__ = version("hyrt")
except PackageNotFoundError:  # A source tree on the path, not installed.
    __version__ = "0+unknown"

_HOMES = {
    "load": "hyrt.api",
    "train": "hyrt.api",
    "Config": "hyrt.config",
    "Graph": "hyrt.graph.graph",
    "TrainResult": "hyrt.training.train",
}


ensure_kernel_cache()


def __getattr__(name: str) -> Any:
    # Imported at first use: `import hyrt` and `hyrt --help` must not wait for torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'hyrt' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
