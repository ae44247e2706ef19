"""Fused loops in CUDA: compiled by NVRTC for every generation of GPUs, and emulated beside dense float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hetero_layers import typed_layer, typed_result, with_types
from hyrt_devices.cuda.edge_loops import CudaLoops, cut_of
from hyrt_devices.cuda.launch import compiled_source
from saga_layers import REFERENCES, layer_of
from tied_layer import Tied, first_edges_gradients
from unit.cuda.emulated_kernels import EmulatedLauncher, needs_compiler
from unit.cuda.fake_driver import FakeDriver
from unit.cuda.test_compiled import architecture, needs_nvrtc
from unit.nn.block_cases import awkward_graph, sampled, tensor_block, values
from unit.nn.saga_blocks import IN, OUT, assert_close, block_of, by_pairs, gradients, rows_of

from hyrt.nn.fused.c_codegen import LoopCall, generate_kernel
from hyrt.nn.fused.c_dialects import CUDA
from hyrt.nn.fused.edge_loop import EdgeLoop
from hyrt.nn.operators.tensor_ops import TensorBlock
from hyrt.nn.torch_threads import torch_threads

FUSED = [name for name, reference in REFERENCES.items() if reference.is_fused]


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def emulated(block: TensorBlock, *, backwards: bool = False) -> tuple[TensorBlock, EmulatedLauncher]:
    """A block whose loops are emulated, and what launches them. A thread alone has a row: no shuffles."""
    launcher = EmulatedLauncher(FakeDriver(), backwards=backwards)
    return replace(block, loops=CudaLoops(launcher, lanes=1)), launcher


@needs_compiler
@pytest.mark.parametrize("name", FUSED)
def test_the_loops_are_the_formula_for_all_pairs(name: str) -> None:
    layer, block = layer_of(name, IN, OUT), block_of(weighted=name in ("G-GCN", "GCN"))
    x = rows_of(block).requires_grad_()
    expected, expected_gradients = by_pairs(name, layer, block, x)
    runs = []
    for backwards in (False, True):
        there, launcher = emulated(tensor_block(block), backwards=backwards)
        result = layer(there, x)
        runs.append([result, *gradients(result, [x, *layer.parameters()])])
        assert set(launcher.launched) == {"edge_loop"}
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    for ours, theirs in zip(runs[0], [expected, *expected_gradients], strict=True):
        assert_close(ours, theirs, 1e-4)


@needs_compiler
def test_wide_indices_and_numbers_are_other_loops() -> None:
    layer, block = layer_of("G-GCN", IN, OUT).double(), tensor_block(block_of())
    wide = replace(block, indptr=block.indptr.long(), columns=block.columns.long())
    x = rows_of(block_of()).double().requires_grad_()
    expected = layer(block, x)
    ours = layer(emulated(wide)[0], x)
    inputs = [x, *layer.parameters()]
    for mine, theirs in zip(
        [ours, *gradients(ours, inputs)], [expected, *gradients(expected, inputs)], strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@needs_compiler
@pytest.mark.parametrize("name", ["attention", "largest"])
def test_types_of_edges_are_read_by_the_loops(name: str) -> None:
    graph = with_types(awkward_graph())
    layer, block = typed_layer(name, IN, OUT), sampled(graph, range(40), [4]).blocks[0]
    x = torch.from_numpy(values(graph)[block.sources]).requires_grad_()
    ours = layer(emulated(tensor_block(block))[0], x)
    p = {key: value.detach().double().requires_grad_() for key, value in layer.named_parameters()}
    wide = x.detach().double().requires_grad_()
    theirs = typed_result(name, p, wide, (block.indptr, block.columns, block.edge_types), block.degrees)
    found = zip(
        [ours, *gradients(ours, [x, *layer.parameters()])],
        [theirs, *gradients(theirs, [wide, *p.values()])],
        strict=True,
    )
    for mine, other in found:
        assert_close(mine, other, 1e-4)


@needs_compiler
def test_the_first_of_equal_messages_gets_the_gradient() -> None:
    torch.manual_seed(0)
    layer, block = Tied(IN, OUT), block_of()
    x = rows_of(block)
    along = torch.sin(torch.arange(block.num_dst * OUT, dtype=torch.float64)).view(-1, OUT)
    expected = first_edges_gradients(along, x.double(), block.indptr, block.columns)
    result = layer(emulated(tensor_block(block))[0], x)
    for mine, theirs in zip(gradients(result, [*layer.parameters()]), expected, strict=True):
        assert_close(mine, theirs, 1e-5)


@needs_compiler
def test_a_second_derivative_is_refused() -> None:
    layer, block = layer_of("G-GCN", IN, OUT), tensor_block(block_of())
    x = rows_of(block_of()).requires_grad_()
    with pytest.raises(RuntimeError, match="compiled loops support only first derivatives"):
        torch.autograd.grad(layer(emulated(block)[0], x).square().sum(), x, create_graph=True)


def loops_of(name: str) -> list[EdgeLoop]:
    fused = layer_of(name, 40, 40)._read()[0].fused
    assert fused is not None
    found = [fused.forward_loop, fused.destination_loop, fused.source_loop]
    return [loop for loop in found if loop is not None]


@needs_nvrtc
@pytest.mark.parametrize(
    ("name", "capabilities"),
    [("GATv2", (75, 80, 90, 100)), ("mixed", (90,)), ("EdgeConv", (75,))],
)
def test_nvrtc_compiles_the_loops(name: str, capabilities: tuple[int, ...]) -> None:
    for loop in loops_of(name):
        kernel = generate_kernel(loop, LoopCall(has_factors=loop.combine == "sum"), cut_of(loop), CUDA)
        for capability in capabilities:
            cubin = compiled_source(kernel.source, capability)
            assert architecture(cubin) == capability
            assert b".text.edge_loop\0" in cubin
