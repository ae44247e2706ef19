"""Model replica on an OpenCL device: its parameters, and steps over staged mini-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.device import check_parameters
from hyrt.errors import UnsupportedModelError
from hyrt.nn.description import ModelDescription, Product
from hyrt.objective import Objective
from hyrt.objective.host_loss import compute_host_loss
from hyrt.runtime.rng import DROPOUT, dropout_threshold, stream_key
from hyrt_devices.opencl.feature_rows import AggregationKernels, DeviceFeatureCache, widened
from hyrt_devices.opencl.launch import Launcher, ceil_div
from hyrt_devices.opencl.matmul_kernels import PRODUCTS, Kernels, Shape, parts_shape, sizeless
from hyrt_devices.opencl.memory import DeviceMemory, Lease
from hyrt_devices.opencl.programs import Programs, Tuning
from hyrt_devices.opencl.staged import CachedOnDevice, StagedBatch, StagedBlock, StagedRows


class Replica:
    """Model replica that computes steps by kernel launches. Parameters and gradients stay on the device.

    `parameters` are the trainable parameters, in the order of gradients and updates. Raises
    UnsupportedModelError if two layers share a parameter, and DeviceOutOfMemoryError if the weights do not
    fit.
    """

    def __init__(
        self,
        programs: Programs,
        tuning: Tuning,
        memory: DeviceMemory,
        model: ModelDescription,
        parameters: Sequence[torch.nn.Parameter],
        device_name: str,
    ) -> None:
        self.model = model
        self._programs = programs
        self._tuning = tuning
        self._memory = memory
        self._lease = Lease(memory)
        self.feature_cache: DeviceFeatureCache | None = None
        self._shapes = [tuple(p.shape) for p in parameters]
        sizes = [p.numel() for p in parameters]
        self._ends = [int(end) for end in np.cumsum(sizes)]
        self._starts = [end - size for end, size in zip(self._ends, sizes, strict=True)]
        starts = {id(p): start for p, start in zip(parameters, self._starts, strict=True)}
        self._used: set[int] = set()
        try:
            self._weights = np.empty(self._ends[-1], np.float32)
            self.parameters = self._lease.floats(self._ends[-1])
            self.gradients = self._lease.floats(self._ends[-1])
            self.results = self._lease.floats(2)
            self.products: list[list[Kernels]] = []
            self._aggregations: list[AggregationKernels] = []
            width = self.row_width
            for i, layer in enumerate(model.layers):
                before = model.layers[i - 1] if i else None
                masked = before is not None and before.products[-1].relu
                self._aggregations.append(
                    AggregationKernels(programs, tuning, layer.aggregation, width, masked=masked)
                )
                kernels: list[Kernels] = []
                for p, product in enumerate(layer.products):
                    for parameter in (product.weight, product.bias):
                        if parameter is not None:
                            if id(parameter) in self._used:
                                raise UnsupportedModelError(
                                    f"layer {layer.name!r} shares a parameter with another layer, which "
                                    f"{device_name} does not support: train it on cpu or cuda"
                                )
                            self._used.add(id(parameter))
                    shape = Shape(
                        k=product.weight.shape[1],
                        n=product.weight.shape[0],
                        weight_at=starts[id(product.weight)],
                        bias_at=-1 if product.bias is None else starts[id(product.bias)],
                        relu=product.relu,
                        transposed=p > 0 or i > 0,
                        masked=p > 0 and layer.products[p - 1].relu,
                    )
                    kernels.append(PRODUCTS[tuning.product](programs, tuning, shape, self._lease))
                    width = shape.n
                self.products.append(kernels)
        except BaseException:
            self._lease.release()
            raise
        self._unused = [
            (start, end)
            for parameter, start, end in zip(parameters, self._starts, self._ends, strict=True)
            if id(parameter) not in self._used
        ]
        words = sizeless(tuning)
        self._loss = programs.kernel("sizeless", "cross_entropy", words)
        self._add = programs.kernel("sizeless", "add_sums", words)
        self._drop = programs.kernel("sizeless", "drop", words)
        self._mask = programs.kernel("sizeless", "mask", words)

    @property
    def row_width(self) -> int:
        first = self.model.layers[0]
        width = first.products[0].weight.shape[1]
        return width // 2 if first.aggregation.self_path == "concat" else width

    @property
    def aggregated_width(self) -> int:
        return self.model.layers[0].products[0].weight.shape[1]

    @property
    def num_classes(self) -> int:
        return self.model.layers[-1].products[-1].weight.shape[0]

    @property
    def num_parameters(self) -> int:
        """Number of elements of all trainable parameters."""
        return self._ends[-1]

    def update(self, queue: Launcher, parameters: Sequence[torch.Tensor]) -> None:
        """Set new weights. The copy completes before any command that is enqueued later."""
        check_parameters(parameters, self._shapes)
        # Wait, because the copy of the previous update may still read this host array.
        queue.finish()
        for start, end, parameter in zip(self._starts, self._ends, parameters, strict=True):
            self._weights[start:end] = parameter.detach().to("cpu", torch.float32).numpy().ravel()
        queue.write(self.parameters, self._weights)
        for products in self.products:
            for product in products:
                product.pack(queue, self.parameters)

    def release(self) -> None:
        """Release weights, gradients and cached rows."""
        self._lease.release()
        if self.feature_cache is not None:
            self.feature_cache.release()

    def run(
        self, queue: Launcher, staged: StagedBatch, objective: Objective | None = None
    ) -> tuple[float, dict[str, float], list[NDArray[np.float32]]]:
        """Compute the loss sum, counts and gradient sums of a staged mini-batch with at least one target.

        The host computes `objective` from the scores; None means classification on the device. Raises
        DeviceOutOfMemoryError if the step does not fit, after releasing all of its buffers.
        """
        lease = Lease(self._memory)
        try:
            inputs, outputs = self._forward(queue, lease, staged)
            grad = lease.floats(staged.rows, self.num_classes)
            host = None
            if objective is None:
                self._cross_entropy(queue, lease, staged, outputs[-1][-1], grad)
            else:
                scores = np.empty((staged.rows, self.num_classes), np.float32)
                queue.read(scores, outputs[-1][-1])
                queue.finish()
                assert staged.host_labels is not None
                rows = staged.host_rows
                of_targets = scores if rows is None else scores[rows]
                host = compute_host_loss(objective, of_targets, staged.host_labels, staged.host_weights)
                gradient = host.gradient
                if rows is not None:
                    gradient = np.zeros_like(scores)
                    gradient[rows] = host.gradient
                queue.write(grad, gradient)
            self._backward(queue, lease, staged, inputs, outputs, grad)
            results = np.empty(2, np.float32)
            if host is None:
                queue.read(results, self.results)
            gradients = self.read_gradients(queue)
        finally:
            # Wait only here, and also after an error, because enqueued commands still use the buffers.
            queue.finish()
            lease.release()
        if host is not None:
            return host.loss_sum, host.counts, gradients
        return float(results[0]), {"correct": int(results[1]), "targets": staged.targets}, gradients

    def read_gradients(self, queue: Launcher) -> list[NDArray[np.float32]]:
        """Wait for the queue, and return the gradient of each parameter."""
        flat = np.empty(self._ends[-1], np.float32)
        queue.read(flat, self.gradients)
        queue.finish()
        for start, end in self._unused:
            flat[start:end] = 0
        return [
            flat[start:end].reshape(shape)
            for start, end, shape in zip(self._starts, self._ends, self._shapes, strict=True)
        ]

    def _forward(
        self, queue: Launcher, lease: Lease, staged: StagedBatch
    ) -> tuple[list[Any], list[list[Any]]]:
        """Return each layer's combined input and the results of its products, the last after dropout."""
        input_rows = staged.inputs
        assert input_rows is not None
        sizes = staged.blocks[0].num_src, self.row_width
        if isinstance(input_rows, CachedOnDevice):
            assert self.feature_cache is not None
            input_rows = self.feature_cache.joined(
                self._programs, self._tuning, queue, lease, input_rows, sizes
            )
        if self.model.input_dropout:
            block = staged.blocks[0]
            whole = widened(self._programs, self._tuning, queue, lease, input_rows, sizes)
            input_rows = StagedRows(lease.floats(*sizes))
            rate = self.model.input_dropout
            self._dropout(queue, whole, input_rows.codes, staged.sources, block, 0, rate, sizes)
        rows = input_rows.codes
        inputs: list[Any] = []
        outputs: list[list[Any]] = []
        for i, (block, products) in enumerate(zip(staged.blocks, self.products, strict=True)):
            if i == 0 and staged.aggregated:
                combined = rows
            else:
                combined = lease.floats(block.num_dst, products[0].shape.k)
                self._aggregations[i].forward(queue, block, StagedRows(rows) if i else input_rows, combined)
            inputs.append(combined)
            results: list[Any] = []
            rows = combined
            for product in products:
                result = lease.floats(block.num_dst, product.shape.n)
                product.forward(queue, self.parameters, rows, result, block.num_dst)
                results.append(result)
                rows = result
            self._drop_layer(queue, staged, i, rows)
            outputs.append(results)
        return inputs, outputs

    def _cross_entropy(
        self, queue: Launcher, lease: Lease, staged: StagedBatch, scores: Any, grad: Any
    ) -> None:
        items = ceil_div(staged.rows, self._tuning.grain)
        sums = lease.floats(items, 2)
        weighted = int(staged.target_weights is not None)
        queue.launch(
            self._loss,
            (ceil_div(items, self._tuning.items),),
            (self._tuning.items,),
            *(scores, staged.labels, staged.target_weights, weighted, grad, sums),
            *(staged.rows, self.num_classes),
        )
        queue.launch(self._add, (1,), (1,), sums, items, self.results)

    def _backward(
        self,
        queue: Launcher,
        lease: Lease,
        staged: StagedBatch,
        inputs: list[Any],
        outputs: list[list[Any]],
        grad: Any,
    ) -> None:
        last = len(self.products) - 1
        for i in range(last, -1, -1):
            block, products = staged.blocks[i], self.products[i]
            layer = self.model.layers[i]
            sizes = block.num_dst, products[-1].shape.n
            if i == last and layer.products[-1].relu:
                scale = dropout_threshold(layer.dropout)[1]
                self._masked(queue, grad, outputs[i][-1], scale, sizes)
            elif not layer.products[-1].relu:
                self._drop_layer(queue, staged, i, grad)
            for p in range(len(products) - 1, -1, -1):
                product = products[p]
                rows = outputs[i][p - 1] if p else inputs[i]
                parts = lease.floats(*parts_shape(self._tuning, product.shape, block.num_dst))
                product.weights(queue, parts, rows, grad, self.gradients, block.num_dst)
                if product.shape.transposed:
                    out = lease.floats(block.num_dst, product.shape.k)
                    activated = rows if product.shape.masked else None
                    product.backward(queue, self.parameters, grad, activated, out, block.num_dst)
                    grad = out
            if i:
                before: Product = self.model.layers[i - 1].products[-1]
                scale = dropout_threshold(self.model.layers[i - 1].dropout)[1] if before.relu else 1.0
                activated = outputs[i - 1][-1] if before.relu else None
                out = lease.floats(block.num_src, before.weight.shape[0])
                self._aggregations[i].backward(queue, block, grad, activated, scale, out)
                grad = out

    def _drop_layer(self, queue: Launcher, staged: StagedBatch, i: int, rows: Any) -> None:
        """Apply the dropout of layer i in place to the layer's result or to the gradient of the result."""
        rate = self.model.layers[i].dropout
        if rate:
            block = staged.blocks[i]
            sizes = block.num_dst, self.products[i][-1].shape.n
            self._dropout(queue, rows, rows, block.destinations, block, i + 1, rate, sizes)

    def _dropout(
        self,
        queue: Launcher,
        x: Any,
        out: Any,
        vertices: Any,
        block: StagedBlock,
        layer: int,
        rate: float,
        sizes: tuple[int, int],
    ) -> None:
        threshold, scale = dropout_threshold(rate)
        key = stream_key(block.seed, DROPOUT, block.step, layer)
        items = ceil_div(ceil_div(sizes[0], self._tuning.grain), self._tuning.items)
        queue.launch(
            self._drop,
            (items,),
            (self._tuning.items,),
            *(x, vertices, key, int(threshold), np.float32(scale), out, *sizes),
        )

    def _masked(
        self, queue: Launcher, grad: Any, activated: Any, scale: float, sizes: tuple[int, int]
    ) -> None:
        items = ceil_div(ceil_div(sizes[0], self._tuning.grain), self._tuning.items)
        queue.launch(
            self._mask,
            (items,),
            (self._tuning.items,),
            *(grad, activated, np.float32(scale), grad, *sizes),
        )
