"""
# Reproducing the published accuracy on Cora

Cora is a small graph that is bundled with hyrt: 2,708 papers, the citations between them, and the words
of each paper. The task is to predict the topic of a paper when only 140 papers have a label. Kipf and
Welling, who introduced the graph convolutional network (GCN) in 2017, reached an accuracy of 81.5 %.
This tutorial reproduces it.
"""

# %%
# ## Open the graph
#
# `hyrt.load` accepts a file, a folder, an object of another library, or a name. The name `cora` needs no
# download.

import hyrt

graph = hyrt.load("cora")
print(graph)

# %%
# ## Train
#
# One call trains a model. Cora is so small that each step can use the full graph: its gradient is exact,
# and nothing is sampled. All settings have defaults that depend on the model; the defaults for GCN are
# the settings of the paper.
#
# `emit` is a function that is called with every training event. Here it appends the events to a list for
# later use.

events = []
result = hyrt.train(graph, "gcn", full_graph=True, train={"epochs": 200}, emit=events.append)
accuracy = result.metrics["test"]["accuracy"]
print(f"accuracy on {graph.masks['test'].sum():,} papers that were never trained on: {accuracy:.1%}")

# %%
# The test split was not used for any choice: hyrt keeps the weights of the epoch with the best accuracy
# on the *validation* split, and `result.metrics` are the metrics of that epoch.
#
# ## Plot the learning curve
#
# Two kinds of events make a learning curve: `EpochEnded` has the loss, `EvaluationFinished` the metrics.

import matplotlib.pyplot as plt

from hyrt.telemetry.events import EpochEnded, EvaluationFinished

epochs = [event for event in events if isinstance(event, EpochEnded)]
evaluations = [event for event in events if isinstance(event, EvaluationFinished)]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
left.plot([each.epoch for each in epochs], [each.loss for each in epochs])
left.set(title="Loss on the training papers", xlabel="epoch", ylabel="cross entropy")
for split in ("val", "test"):
    values = [each.metrics[split]["accuracy"] for each in evaluations]
    right.plot([each.epoch for each in evaluations], values, label=split)
right.axhline(0.815, color="gray", linestyle="--", label="published")
right.set(title="Accuracy by split", xlabel="epoch", ylabel="accuracy")
right.legend()

# %%
# ## Use the trained model
#
# `result.model` is a torch module with the best weights. `hyrt.train(..., folder="runs/cora")` saves
# them in a folder, and `hyrt.load_run("runs/cora", graph=graph)` loads them again, even if the run was
# stopped.
#
# The same from the command line, with a display, checkpoints and a report:
#
#     hyrt run --data cora --model gcn --full-graph --epochs 200
#
# The last line checks the result of this tutorial: a single run must be within two points of the
# published mean.

assert abs(accuracy - 0.815) < 0.02, accuracy
