"""hyrt trains graph neural networks on one heterogeneous machine, in one exact synchronous step.

graph = hyrt.load("cora.npz", normalize="row")
result = hyrt.train(graph, model="gcn", train={"epochs": 50})
result.metrics["test"]["accuracy"], result.model
run = hyrt.load_run("runs/mine")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hyrt.runtime.process_setup import ensure_kernel_cache, register_fork_handlers

if TYPE_CHECKING:
    from hyrt import nn, ops
    from hyrt.api import load, load_run, save, train
    from hyrt.config import Config
    from hyrt.graph.graph import Graph
    from hyrt.nn.conv_adapters import from_dgl, from_pyg
    from hyrt.report.trained_run import TrainedRun
    from hyrt.training.train import TrainResult

    __version__: str

__all__ = [
    "Config",
    "Graph",
    "TrainResult",
    "TrainedRun",
    "__version__",
    "from_dgl",
    "from_pyg",
    "load",
    "load_run",
    "nn",
    "ops",
    "save",
    "train",
]

_MODULES = {
    "from_dgl": "hyrt.nn.conv_adapters",
    "from_pyg": "hyrt.nn.conv_adapters",
    "load": "hyrt.api",
    "load_run": "hyrt.api",
    "save": "hyrt.api",
    "train": "hyrt.api",
    "Config": "hyrt.config",
    "Graph": "hyrt.graph.graph",
    "TrainResult": "hyrt.training.train",
    "TrainedRun": "hyrt.report.trained_run",
}


ensure_kernel_cache()
register_fork_handlers()


def __getattr__(name: str) -> Any:
    # Imported at first use: `import hyrt` and `hyrt --help` must not wait for torch.
    from importlib import import_module

    if name == "__version__":
        return _version()
    if name in ("nn", "ops"):
        return import_module(f"hyrt.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'hyrt' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def _version() -> str:
    # importlib.metadata takes longer to import than the rest of `import hyrt`.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("hyrt")
    except PackageNotFoundError:  # A source tree on the path that is not installed.
        return "0+unknown"


def __dir__() -> list[str]:
    # Lazily imported names are listed even before their import; helpers of this module are not.
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
