"""
# A PyG module on CPU and OpenCL

You have a model made of PyG's convolutions, and a loop that trains it. In this tutorial, hyrt trains the
same module on the same graph, first on the CPU, then on two devices that share each step. The losses
equal the losses of the PyG loop in both cases: the assignment of work to devices changes how long a step
takes, but not its result.
"""

# %%
# This tutorial needs PyG (`pip install torch_geometric`). Its last part uses OpenCL if there is a
# driver; `pip install "hyrt[opencl]"` installs a driver for CPUs.
#
# ## Create a graph and a PyG model
#
# The graph has four groups of 300 vertices. Two vertices of one group are connected ten times as often
# as two vertices of different groups. The features of a single vertex are mostly noise, so a model must
# also use its neighbours.

import torch
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv
from torch_geometric.transforms import RandomNodeSplit
from torch_geometric.utils import stochastic_blockmodel_graph

torch.manual_seed(0)
chances = torch.full((4, 4), 0.002).fill_diagonal_(0.02)
edge_index = stochastic_blockmodel_graph([300] * 4, chances)
y = torch.arange(4).repeat_interleave(300)
x = torch.nn.functional.one_hot(y, 16) + 1.5 * torch.randn(1200, 16)
data = RandomNodeSplit(num_val=200, num_test=400)(Data(x=x, edge_index=edge_index, y=y))
print(data)


def convolutions():
    """Two of PyG's convolutions, with the same weights each time."""
    torch.manual_seed(1)
    return SAGEConv(16, 32), SAGEConv(32, 4)


# %%
# ## Train with a PyG loop
#
# The loop makes forty steps of plain gradient descent on the full graph.

first, second = convolutions()
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.5)
losses = {"PyG's loop": []}
for _ in range(40):
    scores = second(first(data.x, data.edge_index).relu(), data.edge_index)
    loss = torch.nn.functional.cross_entropy(scores[data.train_mask], data.y[data.train_mask])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses["PyG's loop"].append(loss.item())

# %%
# ## Train the same module with hyrt
#
# `hyrt.load` accepts the `Data`, and `hyrt.from_pyg` the convolutions: the loop above becomes one call.

import hyrt
from hyrt.telemetry.events import EpochEnded

graph = hyrt.load(data)
settings = {"train": {"epochs": 40, "optimizer": "SGD", "lr": 0.5}, "full_graph": True}


def hear_losses(name):
    """Collect the loss of each epoch."""
    losses[name] = []
    return lambda event: losses[name].append(event.loss) if isinstance(event, EpochEnded) else None


result = hyrt.train(graph, hyrt.from_pyg(*convolutions()), emit=hear_losses("hyrt on cpu"), **settings)
print(f"test accuracy {result.metrics['test']['accuracy']:.3f}")

# %%
# ## Train on CPU and OpenCL together
#
# OpenCL devices compile custom kernels, so they need a description of the work on an edge. A `SagaLayer`
# provides it in two methods. It uses PyG's convolution, with PyG's weights.


class Sage(hyrt.nn.SagaLayer):
    """PyG's SAGEConv: one product of the mean of the neighbours' rows, another of the own row."""

    accumulate = "mean"

    def __init__(self, convolution):
        super().__init__(convolution.in_channels, convolution.out_channels)
        self.convolution = convolution

    def apply_edge(self, edge):
        return edge.src

    def apply_vertex(self, vertex, gathered):
        return self.convolution.lin_l(gathered) + self.convolution.lin_r(vertex)


from hyrt.device.discovery import survey_devices

has_opencl = any(each.kind == "opencl" and each.found for each in survey_devices())
devices = ["cpu", "opencl"] if has_opencl else ["cpu"]
model = hyrt.nn.stack(*(Sage(each) for each in convolutions()))
shared = hyrt.train(graph, model, devices=devices, emit=hear_losses(" and ".join(devices)), **settings)
accuracy = shared.metrics["test"]["accuracy"]
print(f"trained on {' and '.join(devices)}: test accuracy {accuracy:.3f}")

# %%
# ## Compare the losses
#
# The three curves coincide. They differ only by rounding, because each device adds its sums in another
# order.

import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
for (name, values), style in zip(losses.items(), ("-", "--", ":"), strict=True):
    axes.plot(range(1, 41), values, style, linewidth=3, label=name)
axes.set(title="Loss of each step", xlabel="step", ylabel="cross entropy")
axes.legend()

expected = torch.tensor(losses["PyG's loop"])
for name, values in losses.items():
    difference = (torch.tensor(values) - expected).abs().max().item()
    print(f"{name}: at most {difference:.0e} from PyG's loop")
    assert difference < 1e-4

# %%
# [Migrating from PyG](../docs/from-pyg.md) lists more PyG idioms with their equivalents in hyrt. [Custom
# layers](../docs/layers.md) documents the `SagaLayer`.
