"""Parameters in the kernels' layout, against products computed from them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hyrt_devices.fpga.weights import WeightLayout, layer_shapes
from hyrt_perfmodel.fpga_design import LANES
from torch import nn

from hyrt.errors import ArgumentError, UnsupportedModelError
from hyrt.nn.architecture import Aggregation, Architecture
from hyrt.nn.description import LayerDescription, ModelDescription, Product, describe
from hyrt.nn.model import GNN

MEAN = Aggregation("mean", "none")
BESIDE = Aggregation("mean", "concat")


def described(
    *widths: int, aggregation: Aggregation = MEAN, bias: bool = True
) -> tuple[ModelDescription, list[nn.Parameter]]:
    """Layers of random weights; the parameters are in another order than the layers."""
    torch.manual_seed(0)
    layers: list[LayerDescription] = []
    parameters: list[nn.Parameter] = []
    for i, (given, out) in enumerate(pairwise(widths)):
        weight = nn.Parameter(torch.randn(out, aggregation.width(given)))
        row = nn.Parameter(torch.randn(out)) if bias else None
        layers.append(LayerDescription(f"layers.{i}", aggregation, (Product(weight, row, relu=True),)))
        for parameter in (row, weight):
            if parameter is not None:
                parameters.insert(0, parameter)
    return ModelDescription(tuple(layers)), parameters


@pytest.mark.parametrize("widths", [(5, 3), (16, 32), (17, 1, 40, 2)])
@pytest.mark.parametrize("aggregation", [MEAN, BESIDE])
@pytest.mark.parametrize("bias", [True, False])
def test_padded_rows_give_the_layers_products(
    widths: tuple[int, ...], aggregation: Aggregation, bias: bool
) -> None:
    model, parameters = described(*widths, aggregation=aggregation, bias=bias)
    layout = WeightLayout(model, parameters)
    packed = layout.pack(parameters)
    assert packed.shape == (layout.num_floats,)
    rng = np.random.default_rng(1)
    for layer, shape in zip(model.layers, layout.layers, strict=True):
        product = layer.products[0]
        rows = rng.standard_normal((7, shape.parts, shape.in_width)).astype(np.float32)
        wanted = rows.reshape(7, -1) @ product.weight.detach().numpy().T
        if product.bias is not None:
            wanted += product.bias.detach().numpy()
        padded = np.zeros((7, shape.parts, shape.in_chunks * LANES), np.float32)
        padded[:, :, : shape.in_width] = rows
        matrix = packed[shape.weights * LANES :][: shape.words * LANES].reshape(-1, shape.out_chunks * LANES)
        found = padded.reshape(7, -1) @ matrix[:-1] + matrix[-1]
        np.testing.assert_allclose(found[:, : shape.out_width], wanted, rtol=1e-5, atol=1e-5)
        assert not found[:, shape.out_width :].any()


def test_layers_lie_one_behind_the_other() -> None:
    model, _ = described(5, 20, 3, aggregation=BESIDE)
    first, second = layer_shapes(model)
    # Two parts of one chunk, a bias row, two chunks wide; and two parts of two chunks, one wide.
    assert (first.weights, first.words) == (0, (2 * 16 + 1) * 2)
    assert (second.weights, second.words) == (66, 2 * 32 + 1)


def test_gradients_come_back_in_the_parameters_order() -> None:
    model, parameters = described(17, 9, 3, aggregation=BESIDE)
    given = [*parameters, nn.Parameter(torch.ones(4))]
    layout = WeightLayout(model, given)
    *back, unused = layout.unpack(layout.pack(given))
    for parameter, found in zip(parameters, back, strict=True):
        np.testing.assert_array_equal(found, parameter.detach().numpy())
    # What the model does not use has no place, and a zero gradient.
    assert unused.shape == (4,)
    assert not unused.any()


def test_packing_copies_and_checks_shapes() -> None:
    model, parameters = described(3, 2)
    layout = WeightLayout(model, parameters)
    packed = layout.pack(parameters)
    before = packed.copy()
    with torch.no_grad():
        parameters[0].fill_(7)
    np.testing.assert_array_equal(packed, before)
    with pytest.raises(ArgumentError, match=r"^parameters\[0\] is .*: pass a tensor of shape"):
        layout.pack([parameters[0].T, *parameters[1:]])
    with pytest.raises(ArgumentError, match=r"^parameters is .*: pass a list of"):
        layout.pack(parameters[:1])


def refusal(model: ModelDescription, parameters: list[nn.Parameter]) -> str:
    with pytest.raises(UnsupportedModelError) as error:
        WeightLayout(model, parameters, "fpga:3")
    text = str(error.value)
    assert "fpga:3" in text
    assert "train it on" in text
    return text


def test_what_the_kernels_do_not_compute_is_refused() -> None:
    gin = GNN(Architecture(kind="gin", in_features=4, num_classes=2, layers=2))
    assert "2 products" in refusal(describe(gin, "x"), list(gin.parameters()))
    model, parameters = described(4, 2, aggregation=Aggregation("max", "none"))
    assert "layer 'layers.0'" in refusal(model, parameters)
    model, parameters = described(4, 4)
    twice = ModelDescription((model.layers[0], model.layers[0]))
    assert "shares a parameter" in refusal(twice, parameters)
    model, parameters = described(*[2] * 10)
    assert "9 layers" in refusal(model, parameters)


@pytest.mark.parametrize(
    ("widths", "aggregation", "fits"),
    [
        ((8192, 2), MEAN, True),
        ((8193, 2), MEAN, False),
        ((4096, 2), BESIDE, True),
        ((4097, 2), BESIDE, False),
        ((2, 8192), MEAN, True),
        ((2, 8193), MEAN, False),
    ],
)
def test_widths_end_where_the_row_buffer_and_the_panel_do(
    widths: tuple[int, ...], aggregation: Aggregation, fits: bool
) -> None:
    model, parameters = described(*widths, aggregation=aggregation)
    if fits:
        WeightLayout(model, parameters)
    else:
        assert "8192" in refusal(model, parameters)


def test_layers_that_do_not_chain_are_refused() -> None:
    first, one = described(4, 3)
    second, two = described(5, 2)
    model = ModelDescription((*first.layers, *second.layers))
    assert "of 3 values from the layer below" in refusal(model, [*one, *two])
