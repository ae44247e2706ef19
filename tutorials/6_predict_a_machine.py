"""
# Predicting training time on another machine

How long would an epoch take on another machine? Would more GPUs help? `hyrt predict` answers these
questions from the sizes of the graph and the rates of the machine. It needs neither the graph nor the
machine.
"""

# %%
# ## Run one command
#
# ogbn-papers100M has 111 million papers. The machine has two processors with 64 cores each, and four
# GPUs; a range of `--accelerators` also predicts other numbers of GPUs.

import subprocess
import sys

words = ("predict", "--data", "ogbn-papers100M", "--model", "graphsage")
words += ("--platform", "2x-epyc7763-4x-a5000", "--accelerators", "1..8")
print("$ hyrt", *words)
command = [sys.executable, "-m", "hyrt", *words]
predicted = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
print(predicted)

# %%
# The first lines are the stages of a step: how long each stage works, and which stage is the bottleneck.
# The next lines are the split of a step among the devices, and the required memory. They are followed by
# changes that would make an epoch shorter, by the estimated error of the prediction, and by its
# assumptions.
#
# The table shows how many GPUs are worth buying. When the time stops falling, the host has become the
# bottleneck: it loads rows for all GPUs, and more GPUs would only wait for it.
#
# ## Define a machine
#
# A platform is a short YAML file. It contains the rates of the data sheets, each times the fraction that
# is reached in practice ([Performance model](../docs/performance-model.md) describes the file). In
# Python, a platform is a value that can be changed. Here the host gets memory that is twice as fast. The
# workload of a step is the number of its vertices and edges in each layer.

from dataclasses import replace

from hyrt_perfmodel.platform_file import load_platform
from hyrt_perfmodel.prediction.predict import predict, with_accelerators
from hyrt_perfmodel.workload import TrainingWorkload, Workload, proportional_workload

batch = Workload(
    vertices=(160_000, 22_000, 1024), edges=(210_000, 24_000), features=(128, 256, 172), concat=True
)
training = TrainingWorkload(
    at=proportional_workload(batch, 1024), targets_per_epoch=1_207_179, batch_size=1024
)
machine = load_platform("2x-epyc7763-4x-a5000")
faster = replace(machine, host=replace(machine.host, memory_gb_s=2 * machine.host.memory_gb_s))
counts = range(1, 9)
epochs = {
    name: [predict(with_accelerators(platform, count), training) for count in counts]
    for name, platform in {"as it is": machine, "host memory twice as fast": faster}.items()
}
for name, found in epochs.items():
    print(f"8 GPUs, {name}: {found[-1].epoch_s:.2f} s per epoch, bound by {found[-1].bottleneck}")

# %%
# With faster memory, more GPUs keep making the epoch shorter.

import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
for name, found in epochs.items():
    axes.plot(counts, [each.epoch_s for each in found], "o-", label=name)
axes.set(title="Predicted time of an epoch", xlabel="GPUs", ylabel="seconds", ylim=(0, None))
axes.legend()

# %%
# The pages under [Benchmarks](../benchmarks) compare such predictions with measured and published runs.
# For your machine, `hyrt calibrate` measures the rates in about a minute.

assert "bottleneck" in predicted
assert epochs["as it is"][-1].bottleneck == "load"
assert epochs["host memory twice as fast"][-1].epoch_s < epochs["as it is"][-1].epoch_s
