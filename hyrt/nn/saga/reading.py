"""A method of a layer read symbolically: which operations of torch it consists of, and where they stand.

torch.fx records what is done with values that are not there yet. The layer's parameters are such values, too.
"""

from __future__ import annotations

import copy
import linecache
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node, Proxy
from torch.fx.node import map_arg
from torch.fx.proxy import GraphAppendingTracer, TraceError
from torch.overrides import TorchFunctionMode

from hyrt.errors import UnsupportedModel
from hyrt.nn.operators.product import linear
from hyrt.nn.operators.sparse import SparseRows, sparse_linear

_TORCH = str(Path(torch.__file__).parent)
_HYRT = str(Path(__file__).parents[2]) + os.sep
# Layers that hyrt itself has written as users write theirs.
_LAYERS = str(Path(__file__).parent / "layers")
_OPENED = (
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.LogSigmoid, nn.Hardtanh,
    nn.ReLU6, nn.Identity, nn.Flatten, nn.Unflatten,
)  # fmt: skip
# Random numbers are drawn in an order that depends on who computes what.
_RANDOM = (
    "alpha_dropout", "bernoulli", "dropout", "exponential", "feature_dropout", "multinomial", "normal",
    "random", "uniform",
)  # fmt: skip
_LEAVES_TORCH = ("item", "tolist", "numpy")


def where(node: Node) -> str:
    """Where a user has written an operation, with the line itself."""
    return str(node.meta.get("where", "it"))


def _line(file: str, number: int) -> str:
    text = linecache.getline(file, number).strip()
    return f"{Path(file).name}, line {number}" + (f" (`{text}`)" if text else "")


def _is_users(file: str) -> bool:
    is_hyrts = file.startswith((_TORCH, _HYRT)) and not file.startswith(_LAYERS)
    return not is_hyrts and not file.startswith("<frozen")


def _writer(frame: FrameType | None) -> str:
    while frame is not None and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return "it" if frame is None else _line(frame.f_code.co_filename, frame.f_lineno)


def _raiser(trace: TracebackType | None) -> str:
    """The innermost line of the user's on the way to an error."""
    lines = [each for each in traceback.extract_tb(trace) if _is_users(each.filename)]
    return _line(lines[-1].filename, lines[-1].lineno or 0) if lines else "it"


class _Tracer(GraphAppendingTracer):
    """Records operations with their lines; constants are kept beside the graph."""

    def create_node(self, *args: Any, **kwargs: Any) -> Node:
        node = super().create_node(*args, **kwargs)
        node.meta["where"] = _writer(sys._getframe())
        if node.target is getattr and node.all_input_nodes:
            # An attribute is looked up when it is used, which may be after the method has returned.
            node.meta["where"] = where(node.all_input_nodes[0])
        node.meta["without gradient"] = not torch.is_grad_enabled()
        return node

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, torch.Tensor):
            node = self.create_node("get_attr", "constant", (), {})
            node.meta["constant"] = a
            return node
        return super().create_arg(a)


class _NoRandomNumbers(TorchFunctionMode):
    """Refuses random numbers that a method draws by itself: it is read once, and they would be constants."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self._label = label

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if _is_random(name):
            raise _drawn(self._label, _writer(sys._getframe()), name)
        return func(*args, **(kwargs or {}))


def _is_random(name: str) -> bool:
    return name.startswith("rand") or name.rstrip("_") in _RANDOM


def _drawn(label: str, line: str, name: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{label}: {line} draws random numbers ({name}), and a step would depend on who computes it: leave "
        "it out, and set model.dropout, which is drawn by vertex"
    )


class EdgeProxy:
    """What `apply_edge` is given while it is read.

    Parameters
    ----------
    tracer
        Records what is asked for.
    """

    def __init__(self, tracer: GraphAppendingTracer) -> None:
        self._tracer = tracer
        self._there: dict[str, Proxy] = {}

    def __getattr__(self, name: str) -> Proxy:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in ("src", "dst", "src_degree", "dst_degree", "type", "weight", "data"):
            raise TraceError(
                f"edge.{name}: an edge has none: use edge.src, edge.dst, edge.src_degree, edge.dst_degree, "
                "edge.type, edge.weight or edge.data"
            )
        if name not in self._there:
            self._there[name] = self._tracer.create_proxy("placeholder", name, (), {})
        return self._there[name]


def read_method(layer: nn.Module, method: str, arguments: Sequence[str]) -> Graph:
    """Read a method of a layer.

    Parameters
    ----------
    layer
        The layer; it is left as it is.
    method
        The method's name.
    arguments
        Names of its arguments; `edge` becomes an `EdgeProxy`, others become values.

    Returns
    -------
    The operations; those of `results` give what the method returns.

    Raises
    ------
    UnsupportedModel
        If it does what depends on values that are not there yet, with the line in which it does.
    """
    graph = Graph()
    tracer = _Tracer(graph)
    own = copy.deepcopy(layer)
    for name, module in own.named_modules():
        if name and _is_leaf(module):
            module.forward = _recorder(tracer, name)
            continue
        for kind in (module._parameters, module._buffers):
            for key, value in kind.items():
                if value is not None:
                    path = f"{name}.{key}" if name else key
                    # A proxy in its place is read wherever the parameter is.
                    kind[key] = tracer.create_proxy("get_attr", path, (), {})
    given = [
        EdgeProxy(tracer) if each == "edge" else tracer.create_proxy("placeholder", each, (), {})
        for each in arguments
    ]
    for each in given:
        if isinstance(each, Proxy):
            each.node.meta.pop("where")  # Whoever reads the method has made it.
    label = f"{type(layer).__name__}.{method}"
    try:
        # Inference reads without gradients, too: what the method itself turns off is told from that.
        with torch.enable_grad(), _NoRandomNumbers(label):
            returned = _nodes(getattr(own, method)(*given), label)
    except UnsupportedModel:
        raise
    except TraceError as error:
        line = _raiser(error.__traceback__)
        if str(error).startswith("edge."):
            raise UnsupportedModel(f"{label}: {line}: {error}") from None
        raise UnsupportedModel(
            f"{label}: {line} branches on a value or on its shape, or takes it apart, but the method is read "
            "once, before there are any values: use torch.where, or branch on a setting of the layer, such "
            "as self.in_features"
        ) from error
    except Exception as error:
        line = _raiser(error.__traceback__)
        raise UnsupportedModel(
            f"{label}: {line} cannot be read: {error} ({type(error).__name__}). The method is read once, "
            "before there are values: it may use torch's operations on what it is given, but no Python code "
            "that needs their values"
        ) from error
    for node in graph.nodes:
        if node.op == "call_module" and "Dropout" in type(own.get_submodule(node.target)).__name__:
            node.meta["random"] = True
        _check(node, label)
    graph.output(returned)
    return graph


def results(graph: Graph) -> tuple[Node, ...]:
    """The nodes of what a method returns: of a pair, both."""
    (returned,) = graph.output_node().args
    return returned if isinstance(returned, tuple) else (returned,)  # type: ignore[return-value]


def _is_leaf(module: nn.Module) -> bool:
    """Whether a module of torch's is one operation, and not read itself: it may look at its arguments."""
    opened = (nn.Linear, nn.Sequential, nn.ModuleList, nn.ModuleDict, *_OPENED)
    return type(module).__module__.startswith("torch.nn") and not isinstance(module, opened)


def _recorder(tracer: GraphAppendingTracer, path: str) -> Any:
    def forward(*args: Any, **kwargs: Any) -> Proxy:
        return tracer.create_proxy("call_module", path, args, kwargs)

    return forward


def _nodes(returned: Any, label: str) -> Node | tuple[Node, ...]:
    """The nodes of what a method returns."""
    each = returned if isinstance(returned, tuple) else (returned,)
    for one in each:
        if not isinstance(one, Proxy):
            raise UnsupportedModel(
                f"{label} returned a value of type {type(one).__name__}: return what torch computes from "
                "its arguments"
            )
    nodes = tuple(one.node for one in each)
    return nodes if isinstance(returned, tuple) else nodes[0]


def _check(node: Node, label: str) -> None:
    name = name_of(node)
    if node.op == "call_method" and name.endswith("_") and not name.endswith("__"):
        raise UnsupportedModel(
            f"{label}: {where(node)} changes a value in place, which others may need: use {name[:-1]!r}"
        )
    if node.op == "call_method" and name in _LEAVES_TORCH:
        raise UnsupportedModel(
            f"{label}: {where(node)} takes values out of torch ({name}), but the method is read once, before "
            "there are any: compute with torch's operations"
        )
    if node.kwargs.get("inplace"):
        node.kwargs = {**node.kwargs, "inplace": False}
    if _is_random(name) or "random" in node.meta:
        raise _drawn(label, where(node), name)
    if node.op.startswith("call_") and node.meta["without gradient"]:
        raise UnsupportedModel(
            f"{label}: {where(node)} computes where gradients are turned off, which is not kept when the "
            "method is read: write .detach() after each value that is to have no gradient"
        )


def name_of(node: Node) -> str:
    """The name of the operation."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def compute(
    layer: nn.Module, nodes: Sequence[Node], given: Mapping[Node, Any], rectified: Node | None = None
) -> dict[Node, Any]:
    """Do operations that were read.

    Parameters
    ----------
    layer
        Its parameters are used.
    nodes
        The operations, in order.
    given
        Values of nodes; those of placeholders at least.
    rectified
        The operation whose result goes through a ReLU, if there is one.

    Returns
    -------
    Those values and the results of the operations.
    """
    values = dict(given)
    for node in nodes:
        if node not in values and node.op != "output":
            values[node] = _compute(layer, node, values, relu=node is rectified)
    return values


def _compute(layer: nn.Module, node: Node, values: Mapping[Node, Any], *, relu: bool = False) -> Any:
    if relu and node.target not in _LINEAR:
        return _compute(layer, node, values).relu()
    if node.op == "get_attr":
        return node.meta["constant"] if "constant" in node.meta else attribute_of(layer, str(node.target))
    args: Any = map_arg(node.args, values.__getitem__)
    kwargs: Any = map_arg(node.kwargs, values.__getitem__)
    if node.op == "call_module":
        return layer.get_submodule(str(node.target))(*args, **kwargs)
    if node.target in _LINEAR:
        return _linear(layer, *args, **kwargs, relu=relu)
    # Nothing is done to what is inside of a value: what torch.sort gives would lose the names of its fields.
    args, kwargs = (
        map_arg(each, lambda given: _dense(layer, values[given])) for each in (node.args, node.kwargs)
    )
    if node.op == "call_method":
        first, *rest = args
        return getattr(first, str(node.target))(*rest, **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


_LINEAR = (nn.functional.linear,)


def _linear(
    layer: nn.Module, x: Any, weight: torch.Tensor, bias: torch.Tensor | None = None, *, relu: bool
) -> torch.Tensor:
    """A product; of sparse rows, or by the team of threads that works; then, where asked for, a ReLU."""
    low = bool(getattr(layer, "low_precision", False))
    if isinstance(x, SparseRows):
        products = sparse_linear(x, weight).to(weight.dtype)
        result = products if bias is None else products + bias
    elif x.ndim != 2 or x.dtype != weight.dtype or x.dtype not in (torch.float32, torch.float64):
        result = nn.functional.linear(x, weight, bias)
    else:
        return linear(x, weight, bias, relu=relu, low_precision=low)
    return result.relu() if relu else result


def _dense(layer: nn.Module, value: Any) -> Any:
    return value.dense().to(number_of(layer).dtype) if isinstance(value, SparseRows) else value


def number_of(layer: nn.Module) -> torch.Tensor:
    """A tensor of the dtype and on the device of a layer's parameters; float32 for a layer without any."""
    return next((each.detach() for each in layer.parameters() if each.is_floating_point()), torch.zeros(1))


def attribute_of(layer: nn.Module, path: str) -> Any:
    """A parameter or a buffer of a layer by its name."""
    *modules, last = path.split(".")
    for name in modules:
        # Not by getattr: a module may have the name of a method of torch's.
        layer = layer._modules[name]  # type: ignore[assignment]
    return (layer._parameters if last in layer._parameters else layer._buffers)[last]
