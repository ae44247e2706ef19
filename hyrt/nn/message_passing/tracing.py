"""Symbolic tracing of a layer's method by torch.fx, and passes over the traced operations.  The passes infer
shapes, split linear maps and detect messages that depend on one endpoint. A linear map over both endpoints
can be split: W [a, b] = W_a a + W_b b, and W (a - b) = W a - W b. Most products in edge functions can
therefore be computed per vertex (NeuGraph, section 3.3, does so for products of one endpoint).
"""

from __future__ import annotations

import copy
import linecache
import math
import operator
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal

import torch
from torch import nn
from torch.fx import Graph, Node, Proxy
from torch.fx.node import map_arg
from torch.fx.proxy import GraphAppendingTracer, TraceError
from torch.overrides import TorchFunctionMode

from hyrt.errors import UnsupportedModelError
from hyrt.nn.operators.linear import linear
from hyrt.nn.operators.sparse import SparseRows, sparse_linear

_TORCH = str(Path(torch.__file__).parent)
_HYRT = str(Path(__file__).parents[2]) + os.sep
# Built-in layers that derive from `SagaLayer` count as user code.
_LAYERS = str(Path(__file__).parent / "layers")
_TRACED_MODULES = (
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.LogSigmoid, nn.Hardtanh,
    nn.ReLU6, nn.Identity, nn.Flatten, nn.Unflatten,
)  # fmt: skip
# Random operations are rejected, because the order of their draws would depend on the split.
_RANDOM = (
    "alpha_dropout", "bernoulli", "dropout", "exponential", "feature_dropout", "multinomial", "normal",
    "random", "uniform",
)  # fmt: skip
_CONCRETE_METHODS = ("item", "tolist", "numpy")


def source_line(node: Node) -> str:
    """Return the position and the text of the user code line that calls an operation."""
    return str(node.meta.get("where", "it"))


def _line(file: str, number: int) -> str:
    text = linecache.getline(file, number).strip()
    return f"{Path(file).name}, line {number}" + (f" (`{text}`)" if text else "")


def _is_user_code(file: str) -> bool:
    is_library = file.startswith((_TORCH, _HYRT)) and not file.startswith(_LAYERS)
    return not is_library and not file.startswith("<frozen")


def _calling_line(frame: FrameType | None) -> str:
    while frame is not None and not _is_user_code(frame.f_code.co_filename):
        frame = frame.f_back
    return "it" if frame is None else _line(frame.f_code.co_filename, frame.f_lineno)


def _raising_line(trace: TracebackType | None) -> str:
    """Return the innermost line of user code in a traceback."""
    lines = [frame for frame in traceback.extract_tb(trace) if _is_user_code(frame.filename)]
    return _line(lines[-1].filename, lines[-1].lineno or 0) if lines else "it"


class _Tracer(GraphAppendingTracer):
    """Tracer that records operations with their source lines, and stores constants in node metadata."""

    def create_node(self, *args: Any, **kwargs: Any) -> Node:
        node = super().create_node(*args, **kwargs)
        node.meta["where"] = _calling_line(sys._getframe())
        if node.target is getattr and node.all_input_nodes:
            # torch.fx creates a node for an attribute at its use, perhaps after the method has returned.
            node.meta["where"] = source_line(node.all_input_nodes[0])
        node.meta["without gradient"] = not torch.is_grad_enabled()
        return node

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, torch.Tensor):
            node = self.create_node("get_attr", "constant", (), {})
            node.meta["constant"] = a
            return node
        return super().create_arg(a)


class _RejectRandomNumbers(TorchFunctionMode):
    """Function mode that rejects random operations, whose results tracing would make constants."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self._label = label

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if _is_random(name):
            raise _random_error(self._label, _calling_line(sys._getframe()), name)
        return func(*args, **(kwargs or {}))


def _is_random(name: str) -> bool:
    return name.startswith("rand") or name.rstrip("_") in _RANDOM


def _random_error(label: str, line: str, name: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"in {label}, {line} draws random numbers ({name}), so results would depend on which device "
        "computes them: remove it, and set model.dropout, which draws per vertex"
    )


class EdgeProxy:
    """Argument of `apply_edge` during tracing. The tracer records the fields that are accessed."""

    def __init__(self, tracer: GraphAppendingTracer) -> None:
        self._tracer = tracer
        self._proxies: dict[str, Proxy] = {}

    def __getattr__(self, name: str) -> Proxy:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in ("src", "dst", "src_degree", "dst_degree", "type", "weight", "data"):
            raise TraceError(
                f"edge.{name}, which does not exist: use edge.src, edge.dst, edge.src_degree, "
                "edge.dst_degree, edge.type, edge.weight or edge.data"
            )
        if name not in self._proxies:
            self._proxies[name] = self._tracer.create_proxy("placeholder", name, (), {})
        return self._proxies[name]


def trace_method(layer: nn.Module, method: str, arguments: Sequence[str]) -> Graph:
    """Trace a method of a layer without modifying the layer.

    `arguments` are the names of its arguments: `edge` becomes an `EdgeProxy`, the others become proxies.
    Raises UnsupportedModelError with the source line if it depends on concrete values or cannot be traced.
    """
    graph = Graph()
    tracer = _Tracer(graph)
    traced = copy.deepcopy(layer)
    for name, module in traced.named_modules():
        if name and _is_leaf(module):
            module.forward = _recorder(tracer, name)
            continue
        for kind in (module._parameters, module._buffers):
            for key, value in kind.items():
                if value is not None:
                    path = f"{name}.{key}" if name else key
                    # Each access to the parameter reads the proxy instead.
                    kind[key] = tracer.create_proxy("get_attr", path, (), {})
    proxies = [
        EdgeProxy(tracer) if name == "edge" else tracer.create_proxy("placeholder", name, (), {})
        for name in arguments
    ]
    for proxy in proxies:
        if isinstance(proxy, Proxy):
            proxy.node.meta.pop("where")  # The node was created here and has no line of user code.
    label = f"{type(layer).__name__}.{method}"
    try:
        # Enable gradients, which inference disables, to detect `no_grad` in the method.
        with torch.enable_grad(), _RejectRandomNumbers(label):
            returned = _nodes(getattr(traced, method)(*proxies), label)
    except UnsupportedModelError:
        raise
    except TraceError as error:
        line = _raising_line(error.__traceback__)
        if str(error).startswith("edge."):
            raise UnsupportedModelError(f"in {label}, {line} reads {error}") from None
        raise UnsupportedModelError(
            f"in {label}, {line} branches on a value or its shape, or unpacks it, but the method is traced "
            "once, without values: use torch.where, or branch on a layer setting such as self.in_features"
        ) from error
    except Exception as error:
        line = _raising_line(error.__traceback__)
        raise UnsupportedModelError(
            f"in {label}, {line} cannot be traced ({type(error).__name__}: {error}), because the method is "
            "called once, without values: use only torch operations on the arguments"
        ) from error
    for node in graph.nodes:
        if node.op == "call_module" and "Dropout" in type(traced.get_submodule(node.target)).__name__:
            node.meta["random"] = True
        _check_node(node, label)
    graph.output(returned)
    return graph


def returned_nodes(graph: Graph) -> tuple[Node, ...]:
    """Return the nodes of the method's result: one, or two for a pair."""
    (returned,) = graph.output_node().args
    return returned if isinstance(returned, tuple) else (returned,)  # type: ignore[return-value]


def _is_leaf(module: nn.Module) -> bool:
    """Return whether a torch module is one traced operation, since it may read concrete values."""
    traced_types = (nn.Linear, nn.Sequential, nn.ModuleList, nn.ModuleDict, *_TRACED_MODULES)
    return type(module).__module__.startswith("torch.nn") and not isinstance(module, traced_types)


def _recorder(tracer: GraphAppendingTracer, path: str) -> Any:
    def forward(*args: Any, **kwargs: Any) -> Proxy:
        return tracer.create_proxy("call_module", path, args, kwargs)

    return forward


def _nodes(returned: Any, label: str) -> Node | tuple[Node, ...]:
    """Convert the result of the method to nodes."""
    values = returned if isinstance(returned, tuple) else (returned,)
    for value in values:
        if not isinstance(value, Proxy):
            raise UnsupportedModelError(
                f"{label} returned a value of type {type(value).__name__}: return what torch computes from "
                "its arguments"
            )
    nodes = tuple(value.node for value in values)
    return nodes if isinstance(returned, tuple) else nodes[0]


def _check_node(node: Node, label: str) -> None:
    name = operation_name(node)
    if node.op == "call_method" and name.endswith("_") and not name.endswith("__"):
        raise UnsupportedModelError(
            f"in {label}, {source_line(node)} changes a value in place, which other operations may need: "
            f"use {name[:-1]!r}"
        )
    if node.op == "call_method" and name in _CONCRETE_METHODS:
        raise UnsupportedModelError(
            f"in {label}, {source_line(node)} converts a tensor to Python values ({name}), but the method "
            "is traced once, without values: use torch operations"
        )
    if node.kwargs.get("inplace"):
        node.kwargs = {**node.kwargs, "inplace": False}
    if _is_random(name) or "random" in node.meta:
        raise _random_error(label, source_line(node), name)
    if node.op.startswith("call_") and node.meta["without gradient"]:
        raise UnsupportedModelError(
            f"in {label}, {source_line(node)} computes with gradients disabled, which tracing does not "
            "preserve: write .detach() after each value that needs no gradient"
        )


def operation_name(node: Node) -> str:
    """Return the name of an operation."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def run_nodes(
    layer: nn.Module, nodes: Sequence[Node], known_values: Mapping[Node, Any], relu_node: Node | None = None
) -> dict[Node, Any]:
    """Run traced operations in order; return their results together with `known_values`.

    `known_values` must have all placeholders. A ReLU is applied to the result of `relu_node`.
    """
    values = dict(known_values)
    for node in nodes:
        if node not in values and node.op != "output":
            values[node] = _compute(layer, node, values, relu=node is relu_node)
    return values


def _compute(layer: nn.Module, node: Node, values: Mapping[Node, Any], *, relu: bool = False) -> Any:
    if relu and node.target not in _LINEAR:
        return _compute(layer, node, values).relu()
    if node.op == "get_attr":
        return node.meta["constant"] if "constant" in node.meta else get_tensor(layer, str(node.target))
    if node.target in _LINEAR:
        args: Any = map_arg(node.args, values.__getitem__)
        kwargs: Any = map_arg(node.kwargs, values.__getitem__)
        return _linear(layer, *args, **kwargs, relu=relu)
    # Use `map_arg` on nodes only, since mapping the result of torch.sort would discard its field names.
    args, kwargs = (
        map_arg(arguments, lambda operand: _dense(layer, values[operand]))
        for arguments in (node.args, node.kwargs)
    )
    if node.op == "call_module":
        return layer.get_submodule(str(node.target))(*args, **kwargs)
    if node.op == "call_method":
        first, *rest = args
        return getattr(first, str(node.target))(*rest, **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


_LINEAR = (nn.functional.linear,)


def _linear(
    layer: nn.Module, x: Any, weight: torch.Tensor, bias: torch.Tensor | None = None, *, relu: bool
) -> torch.Tensor:
    """Apply a linear map to sparse or dense rows with the current thread team, then an optional ReLU."""
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
    return value.to_dense().to(reference_tensor(layer).dtype) if isinstance(value, SparseRows) else value


def reference_tensor(layer: nn.Module) -> torch.Tensor:
    """Return a tensor with the dtype and device of the layer's parameters; float32 if there are none."""
    return next((each.detach() for each in layer.parameters() if each.is_floating_point()), torch.zeros(1))


def get_tensor(layer: nn.Module, path: str) -> Any:
    """Return a parameter or buffer of a layer by its path."""
    *modules, last = path.split(".")
    for name in modules:
        # `getattr` is not used, because a submodule may have the same name as a torch method.
        layer = layer._modules[name]  # type: ignore[assignment]
    return (layer._parameters if last in layer._parameters else layer._buffers)[last]


Shapes = dict[Node, tuple[int, ...]]
"""Shape of each tensor, without the first dimension if it is the row dimension."""

# Two row counts that are unlikely dimensions of a layer. No dimension can be equal to both. The larger batch
# contains the rows of the smaller batch at other positions, with other rows around them.
_FEW, _MORE = 5, 7
_POSITIONS = (5, 3, 0, 6, 4, 1, 2)
"""Row number at each position of the larger batch."""
_FEW_AMONG_MORE = [_POSITIONS.index(row) for row in range(_FEW)]
_COUNT_OPS = ("view", "reshape", "expand", "unflatten", "view_as")


def infer_shapes(
    layer: nn.Module, graph: Graph, arguments: Mapping[str, tuple[int, ...]], label: str
) -> Shapes:
    """Run a traced method on two batches of dummy rows and return the shapes of all tensors.

    Sizes that the method reads from shapes become constants in `graph`, and node metadata gets the dtypes.
    `arguments` has the shape of one row per argument; () for a column, such as a degree or a type.

    Raises UnsupportedModelError with the line of user code if an operation fails, if a row depends on other
    rows, or if the number of rows is used outside of `view`.
    """
    few, more = (_values(layer, graph, arguments, rows, label) for rows in (range(_FEW), _POSITIONS))
    _inline_sizes(graph, few, more, label)
    shapes = {}
    from_rows: set[Node] = set()
    for node in graph.nodes:
        if node.op == "output":
            continue
        a, b = few[node], more[node]
        if node.op == "placeholder" or any(source in from_rows for source in node.all_input_nodes):
            from_rows.add(node)
        if not isinstance(a, torch.Tensor):
            continue
        node.meta["dtype"] = a.dtype
        if node not in from_rows:
            shapes[node] = tuple(a.shape)
            continue
        if a.ndim == 0 or len(a) != _FEW or len(b) != _MORE or not _is_close(a, b[_FEW_AMONG_MORE]):
            raise UnsupportedModelError(
                f"in {label}, {source_line(node)} combines rows, but each row must depend only on itself, "
                "because rows are computed in parts: use the accumulator to combine edges"
            )
        shapes[node] = tuple(a.shape[1:])
    return shapes


def _is_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not a.is_floating_point():
        return bool(torch.equal(a, b))
    return bool(torch.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True))


def _values(
    layer: nn.Module, graph: Graph, arguments: Mapping[str, tuple[int, ...]], rows: Sequence[int], label: str
) -> dict[Node, Any]:
    like = reference_tensor(layer)
    values: dict[Node, Any] = {}
    with torch.no_grad():
        for node in graph.nodes:
            if node.op == "placeholder":
                values[node] = _rows(rows, arguments[node.target], like, str(node.target))
                continue
            try:
                values = run_nodes(layer, [node], values)
            except Exception as error:
                message = " ".join(str(error).split())
                raise UnsupportedModelError(f"in {label}, {source_line(node)} fails: {message}") from error
    return values


def _rows(rows: Sequence[int], shape: tuple[int, ...], like: torch.Tensor, name: str) -> torch.Tensor:
    numbers = torch.tensor(rows)
    if not shape:
        # The types are 0 and 1, since layers that distinguish edge types have at least two.
        return (numbers % 2 if name == "type" else numbers + 1).to(like)[:, None]
    # Irregular but deterministic numbers of both signs, which differ between arguments.
    steps = torch.arange(_MORE * math.prod(shape), dtype=torch.float64).view(_MORE, *shape)[numbers]
    return torch.sin(steps * 12.9898 + len(name)).to(like)


def _inline_sizes(graph: Graph, few: Mapping[Node, Any], more: Mapping[Node, Any], label: str) -> None:
    for node in graph.nodes:
        sizes = [source for source in node.all_input_nodes if not _has_tensors(few[source])]
        if node.op == "output" or not sizes or not _has_tensors(few[node]):
            continue
        constants = {size: _constant(few[size], more[size]) for size in sizes}
        counts = [size for size in sizes if _has_count(constants[size])]
        if counts and operation_name(node) not in _COUNT_OPS:
            raise UnsupportedModelError(
                f"in {label}, {source_line(node)} uses the number of rows, but only some rows are present "
                "at a time: use -1 for this number in view"
            )
        if counts and operation_name(node) in ("view", "reshape") and len(few[node]) == _FEW:
            # torch infers one dimension, which becomes the first one.
            node.args = (node.args[0], -1, *few[node].shape[1:])
            node.kwargs = {}
            continue
        for size, constant in constants.items():
            _replace_size(node, size, constant)


def _has_tensors(value: Any) -> bool:
    """Return whether a value is a tensor or a tuple with tensors (as from torch.sort), and not a size."""
    if isinstance(value, tuple | list):
        return any(map(_has_tensors, value))
    return isinstance(value, torch.Tensor)


def _replace_size(node: Node, size: Node, constant: Any) -> None:
    """Replace a size by a constant in the arguments of an operation."""
    node.args = map_arg(node.args, lambda argument: constant if argument is size else argument)
    node.kwargs = map_arg(node.kwargs, lambda argument: constant if argument is size else argument)


def _constant(few: Any, more: Any) -> Any:
    """Return a size as a constant, with -1 for the number of rows."""
    if isinstance(few, tuple):
        return tuple(_constant(a, b) for a, b in zip(few, more, strict=True))
    return few if few == more else -1


def _has_count(constant: Any) -> bool:
    numbers: Iterable[Any] = constant if isinstance(constant, tuple) else (constant,)
    return any(isinstance(number, int) and number == -1 for number in numbers)


@dataclass(frozen=True, slots=True)
class EndpointLinear:
    """Message from one endpoint of the edges: its row, or a linear map of its row."""

    end: Literal["source", "destination"]
    weight: str | None
    """Name of the weight [width, in]; None if the message is the row itself."""
    bias: str | None
    """Name of the bias [width]; None if there is none."""


def find_endpoint_linear(node: Node, end: Literal["source", "destination"]) -> EndpointLinear | None:
    """Return a traced value as a linear map of one endpoint's rows; None if it is anything else."""
    if node.op == "placeholder":
        return EndpointLinear(end, None, None)
    if node.target is not torch.nn.functional.linear:
        return None
    arguments: Mapping[str, Any] = (
        dict(zip(("input", "weight", "bias"), node.args, strict=False)) | node.kwargs
    )
    x, weight, bias = arguments["input"], arguments["weight"], arguments.get("bias")
    if x.op != "placeholder" or not _is_parameter(weight) or not (bias is None or _is_parameter(bias)):
        return None
    return EndpointLinear(end, str(weight.target), None if bias is None else str(bias.target))


def _is_parameter(node: Any) -> bool:
    return isinstance(node, Node) and node.op == "get_attr" and "constant" not in node.meta


Ends = Callable[[Node], frozenset[str]]
"""Function that returns the arguments of `apply_edge` on which a value depends."""


def split_linear(graph: Graph, shapes: Shapes, ends: Ends) -> None:
    """Split linear maps into terms that each depend on one endpoint; add the new shapes to `shapes`."""
    for node in list(graph.nodes):
        if node.target is not torch.nn.functional.linear or len(ends(node)) < 2:
            continue
        x, weight, bias = _linear_arguments(node)
        if not isinstance(x, Node) or len(shapes[x]) != 1:
            continue
        terms = _terms(graph, x, (0, shapes[x][0]), 1, shapes, ends)
        if terms is None:
            continue
        with graph.inserting_before(node):
            _replace(graph, node, weight, bias, terms, shapes)


def _linear_arguments(node: Node) -> tuple[Any, Any, Any]:
    arguments = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | dict(node.kwargs)
    return arguments["input"], arguments["weight"], arguments.get("bias")


Term = tuple[Node, tuple[int, int], int, frozenset[str]]
"""Rows, the range of weight columns that multiply the rows, their sign, and their edge inputs."""


def _terms(
    graph: Graph, x: Node, columns: tuple[int, int], sign: int, shapes: Shapes, ends: Ends
) -> list[Term] | None:
    """Split a sum or concatenation into terms that each depend on one endpoint; None if impossible."""
    if len(ends(x)) < 2:
        return [(x, columns, sign, ends(x))]
    name = operation_name(x)
    parts: list[tuple[Node, tuple[int, int], int]] = []
    if name in ("cat", "concat", "concatenate"):
        arguments: dict[str, Any] = dict(zip(("tensors", "dim"), x.args, strict=False)) | dict(x.kwargs)
        if arguments.get("dim", 0) not in (1, -1) or "axis" in arguments:
            return None
        start = columns[0]
        for part in arguments["tensors"]:
            width = shapes[part][0]
            parts.append((part, (start, start + width), sign))
            start += width
    elif name in ("add", "sub") and not x.kwargs and len(x.args) == 2:
        both: Any = x.args
        if not all(isinstance(each, Node) and shapes[each] == shapes[x] for each in both):
            return None
        first, second = both
        parts = [(first, columns, sign), (second, columns, sign if name == "add" else -sign)]
    else:
        return None
    all_terms: list[Term] = []
    for part, part_columns, part_sign in parts:
        terms = _terms(graph, part, part_columns, part_sign, shapes, ends)
        if terms is None:
            return None
        all_terms += terms
    return all_terms


def _replace(graph: Graph, node: Node, weight: Node, bias: Any, terms: list[Term], shapes: Shapes) -> None:
    """Replace a linear map by a sum of linear maps with one term per endpoint."""
    x, (out,) = _linear_arguments(node)[0], shapes[node]
    whole = (0, shapes[x][0])

    def call(target: Any, *args: Any, shape: tuple[int, ...]) -> Node:
        new = graph.call_function(target, args)
        new.meta["where"] = node.meta.get("where")
        shapes[new] = shape
        return new

    products: dict[frozenset[str], Node] = {}
    for rows, columns, sign, inputs in terms:
        part = weight
        if columns != whole:
            shape = (out, columns[1] - columns[0])
            part = call(operator.getitem, weight, (slice(None), slice(*columns)), shape=shape)
        if sign < 0:
            part = call(operator.neg, part, shape=(out, columns[1] - columns[0]))
        product = call(torch.nn.functional.linear, rows, part, bias, shape=(out,))
        bias = None
        previous = products.get(inputs)
        products[inputs] = (
            product if previous is None else call(operator.add, previous, product, shape=(out,))
        )
    total, *others = products.values()
    for other in others:
        total = call(operator.add, total, other, shape=(out,))
    node.replace_all_uses_with(total)
