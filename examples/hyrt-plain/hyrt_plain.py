"""A complete device backend in one file: it trains GraphSAGE with mean, GCN and GIN in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hyrt.device import DeviceInfo, DeviceOptions, Health, StepResult
from hyrt.nn.description import LayerDescription, describe
from hyrt.nn.operators.aggregate import compute_scales
from hyrt.sampling.block import Block


@dataclass
class Staged:
    """What `transfer` gives to `propagate`: a real accelerator would hold buffers of its own here."""

    owner: PlainDevice | None
    batch: Any
    rows: np.ndarray
    mixings: list[Mixing]


class Mixing:
    """One layer's aggregation over one block, forward and backward."""

    def __init__(self, layer: LayerDescription, block: Block) -> None:
        self.how, self.num_src, self.num_dst = layer.aggregation, block.num_src, block.num_dst
        factors = self.factors = compute_scales(layer.aggregation, block, np.dtype(np.float32))
        self.columns, self.rows = block.columns, np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
        source = 1.0 if factors.source is None else factors.source[self.columns]
        self.edge = factors.row[self.rows] * source * (1.0 if factors.edge is None else factors.edge)

    def forward(self, x: np.ndarray) -> np.ndarray:
        total = np.zeros((self.num_dst, x.shape[1]), np.float32)
        np.add.at(total, self.rows, self.edge[:, None] * x[self.columns])
        own = x[: self.num_dst]
        if self.how.self_path == "concat":
            return np.concatenate([own, total], axis=1)
        return total if self.factors.self_loop is None else total + self.factors.self_loop[:, None] * own

    def backward(self, grad: np.ndarray, width: int) -> np.ndarray:
        out = np.zeros((self.num_src, width), np.float32)
        np.add.at(out, self.columns, self.edge[:, None] * grad[self.rows, -width:])
        if self.how.self_path == "concat":
            out[: self.num_dst] += grad[:, :width]
        elif self.factors.self_loop is not None:
            out[: self.num_dst] += self.factors.self_loop[:, None] * grad
        return out


class PlainDevice:
    """The protocol of `hyrt.device.Device`, method by method."""

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info
        self._health = Health(info.name)

    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        return [DeviceInfo(kind="plain", index=0, description="NumPy", memory_bytes=0, host_cores=1)]

    @classmethod
    def open(cls, info: DeviceInfo, options: DeviceOptions) -> PlainDevice:
        return cls(info)

    def load(self, model: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        self._health.check()
        self._layers = describe(model, self.info.name, dropout=False).layers
        trainable = [p for p in model.parameters() if p.requires_grad]
        self._at = {id(p): i for i, p in enumerate(trainable)}
        self.update(parameters)

    def transfer(self, batch: Any) -> Staged:
        with self._health.terminal("transfer"):
            mixings = [Mixing(*pair) for pair in zip(self._layers, batch.blocks, strict=True)]
            return Staged(self, batch, batch.inputs.numpy(), mixings)

    def propagate(self, staged: Staged) -> StepResult:
        with self._health.terminal("propagate"):
            if not isinstance(staged, Staged) or staged.owner is not self:
                raise TypeError("expected a mini-batch from transfer that was not propagated before")
            staged.owner = None
            batch, x = staged.batch, staged.rows
            num, normalizer, tape = len(batch.targets), batch.normalizer, []
            if not num:
                return StepResult.empty(normalizer)
            for layer, mixing in zip(self._layers, staged.mixings, strict=True):
                tape.append([x := mixing.forward(x)])
                for product in layer.products:
                    x = x @ self._weights[self._at[id(product.weight)]].T
                    x = x if product.bias is None else x + self._weights[self._at[id(product.bias)]]
                    tape[-1].append(x := np.maximum(x, 0) if product.relu else x)
            logs = x - x.max(1, keepdims=True)
            logs -= np.log(np.exp(logs).sum(1, keepdims=True))
            weights = np.ones(num, np.float32) if batch.target_weights is None else batch.target_weights
            loss = -(weights * logs[np.arange(num), batch.labels]).sum()
            grad = weights[:, None] * (np.exp(logs) - np.eye(x.shape[1], dtype=np.float32)[batch.labels])
            gradients = [np.zeros_like(w) for w in self._weights]
            for i in reversed(range(len(self._layers))):
                for p, product in reversed(list(enumerate(self._layers[i].products))):
                    grad = grad * (tape[i][p + 1] > 0) if product.relu else grad
                    gradients[self._at[id(product.weight)]] += grad.T @ tape[i][p]
                    if product.bias is not None:
                        gradients[self._at[id(product.bias)]] += grad.sum(0)
                    grad = grad @ self._weights[self._at[id(product.weight)]]
                if i:
                    grad = staged.mixings[i].backward(grad, tape[i - 1][-1].shape[1])
            return StepResult(
                loss_sum=float(loss),
                counts={"correct": int((x.argmax(1) == batch.labels).sum()), "targets": num},
                normalizer=normalizer,
                gradients=[torch.from_numpy(g) for g in gradients],
            )

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        with self._health.terminal("update"):
            self._weights = [p.detach().numpy().copy() for p in parameters]

    def close(self) -> None:
        self._health.close()
