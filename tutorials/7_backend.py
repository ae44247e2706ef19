"""
# A backend in 100 lines

One class is enough to train with a new kind of device. This tutorial writes such a class for an
imaginary processor, and uses the conformance suite to compare it with dense float64 matrices.
"""

# %%
# ## Write the backend
#
# hyrt samples mini-batches and collects their rows. A backend copies a mini-batch to its device
# (`transfer`), computes the loss and the gradients there (`propagate`), and receives new weights
# (`update`). Two rules make a step exact, whichever device computes it. Losses and gradients are *sums*
# over the targets, never means, because hyrt divides once by the number of all targets of a step. And
# equal steps give equal bits.
#
# The imaginary processor runs torch, so that the page works everywhere. A real backend would copy data
# in `transfer` and call its kernels in `propagate`.

import copy
from dataclasses import dataclass
from typing import Any

import torch

from hyrt.device import DeviceInfo, Health, StepResult
from hyrt.nn.model_errors import reject_batch_statistics


@dataclass(eq=False)
class Waiting:
    """A mini-batch on the device."""

    batch: Any
    owner: Any  # None as soon as it has been computed: a mini-batch is used once.


class DemoDevice:
    """The imaginary processor."""

    def __init__(self, info):
        self.info = info
        # Remembers the first fault, and raises it again at every later call.
        self._health = Health(info.name)

    @classmethod
    def probe(cls):
        """Which devices there are: cheap, and an empty list where the driver is missing."""
        about = {"description": "imaginary processor", "memory_bytes": 2**30, "zero_copy": True}
        return [DeviceInfo(kind="demo", index=0, whole_graphs=True, **about)]

    @classmethod
    def open(cls, info, options):
        """Claim the device."""
        return cls(info)

    def load(self, model, parameters):
        """Make the device's own copy of the model."""
        self._health.check()
        reject_batch_statistics(model, self.info.name)
        self._model = copy.deepcopy(model).train()
        self._parameters = [each for each in self._model.parameters() if each.requires_grad]
        self.update(parameters)

    def transfer(self, batch):
        """Bring a mini-batch to the device."""
        with self._health.terminal("transfer"):
            return Waiting(batch, owner=self)

    def propagate(self, staged):
        """Compute loss and gradients, forward and backward."""
        with self._health.terminal("propagate"):
            if not isinstance(staged, Waiting) or staged.owner is not self:
                raise TypeError("this mini-batch does not wait here")
            batch, staged.owner = staged.batch, None
            if not len(batch.targets):  # A split may give a device nothing.
                return StepResult.empty(batch.normalizer)
            self._model.zero_grad(set_to_none=True)
            scores = self._model(batch.blocks, batch.inputs)
            if batch.target_rows is not None:  # A whole graph has scores of all vertices.
                scores = scores[torch.from_numpy(batch.target_rows)]
            labels = torch.from_numpy(batch.labels)
            losses = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
            if batch.target_weights is not None:
                losses = losses * torch.from_numpy(batch.target_weights)
            losses.sum().backward()
            return StepResult(
                loss_sum=losses.sum().item(),
                counts={"correct": int((scores.argmax(1) == labels).sum()), "targets": len(labels)},
                normalizer=batch.normalizer,
                gradients=[
                    torch.zeros_like(each) if each.grad is None else each.grad for each in self._parameters
                ],
            )

    def update(self, parameters):
        """Take the new weights."""
        with self._health.terminal("update"), torch.no_grad():
            for mine, new in zip(self._parameters, parameters, strict=True):
                mine.copy_(new)

    def close(self):
        """Release everything; may be called twice."""
        self._health.close()


# %%
# ## Run the conformance suite
#
# The suite builds small graphs, computes each step with dense matrices in float64, and compares loss and
# gradients. It also tests typical failures: two threads at once, steps without targets, calls after a
# fault and after `close`, and memory leaks. All checks take about half a minute. This page runs only the
# checks whose names contain certain words; omit `only` to run all checks.

from hyrt.testing import check_device


def open_demo(options):
    """Open a device for the suite."""
    return DemoDevice.open(DemoDevice.probe()[0], options)


for words in (
    "float64: gcn",
    "equal steps give equal bits",
    "threads",
    "fault",
    "mini batch",
    "parts add up",
):
    print(f"{words}: {str(check_device(open_demo, only=words)).splitlines()[0]}")

# %%
# ## Test the suite with a bug
#
# A suite that cannot fail proves nothing. This device has a small bug: it returns the mean of the
# losses' gradients in place of their sum.

from dataclasses import replace

from hyrt.testing import ConformanceError


class MeanDevice(DemoDevice):
    """Divides the gradients by the number of targets."""

    def propagate(self, staged):
        """Compute what is almost right."""
        right = super().propagate(staged)
        count = max(right.counts.get("targets", 0), 1)
        return replace(right, gradients=[each / count for each in right.gradients])


try:
    check_device(
        lambda options: MeanDevice.open(MeanDevice.probe()[0], options), only="float64: gcn, layers=2"
    )
except ConformanceError as error:
    noticed = str(error)
    print(noticed)

# %%
# ## Train with the backend
#
# An entry point registers the class. Add it to the `pyproject.toml` of your package:
#
#     [project.entry-points."hyrt.devices"]
#     demo = "my_package:DemoDevice"
#
# After `pip install`, `hyrt devices` lists `demo:0`, and `hyrt run --devices cpu,demo:0` trains with
# both devices. [Backends](../docs/backends.md) documents the optional capabilities of a device:
# sampling, caching rows, training full graphs in chunks.

assert "gradient" in noticed
