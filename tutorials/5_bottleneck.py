"""
# Finding and relieving the bottleneck

A training step consists of stages: sample, load, transfer, propagate, synchronize. The stages overlap,
so the slowest stage determines the speed, and making any other stage faster has no effect. In this
tutorial, a run shows its slowest stage, and one setting makes it faster.
"""

# %%
# ## Train a model
#
# The model is GraphSAGE on a generated graph, with 25 sampled neighbours of each target and 10
# neighbours of each of these. The resource manager is off (`balance.policy=static`), so that only our
# change has an effect.

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

folder = TemporaryDirectory()
here = Path(folder.name)


def hyrt_run(name, *settings):
    """Train in a run folder of this name, and return what its summary says."""
    words = ("run", "--data", "synthetic:community,vertices=10k", "--name", name, "--quiet", *settings)
    print("$ hyrt", *words)
    command = [sys.executable, "-m", "hyrt", *words, "balance.policy=static"]
    print(subprocess.run(command, cwd=here, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return json.loads((here / "runs" / name / "summary.json").read_text())


wide = hyrt_run("wide", "--epochs", "4", "sampler.fanout=25,10")

# %%
# ## Find the bottleneck
#
# `report.html` in the run folder shows how long each stage works and waits in a step, and how many
# mini-batches queue up behind it. Open it in a browser. The stage marked with ◀ is the slowest.
# `summary.json` contains the same values:


def stages_ms(summary):
    """Milliseconds of work that each stage has in a step."""
    return {stage: 1e3 * seconds for stage, seconds in summary["stages_s"].items()}


bottleneck = max(stages_ms(wide), key=stages_ms(wide).get)
for stage, time_ms in stages_ms(wide).items():
    print(f"{stage:12} {time_ms:8.2f} ms {'◀' if stage == bottleneck else ''}")

# %%
# ## Choose a remedy
#
# | slowest stage | remedies |
# | --- | --- |
# | sample | fewer neighbours (`sampler.fanout`), `sampler.kind=labor`, more threads |
# | load | quantized features (`data.feature_dtype=int8`), a folder on a faster disk |
# | transfer | quantized features, a feature cache on the device (`data.cache`) |
# | propagate | fewer neighbours, fewer hidden units, one more device |
# | synchronize | larger batches |
#
# Unless it is turned off, the resource manager moves threads and targets to relieve the slowest stage;
# the report lists each decision with its reason. `hyrt predict` lists changes that would make a run
# faster, without training.
#
# ## Reduce the fan-out
#
# Every stage has work for each sampled neighbour, so fewer neighbours make all stages faster. Gradients
# become noisier, so half of the saved time is spent on more epochs.

narrow = hyrt_run("narrow", "--epochs", "8", "sampler.fanout=5,5")
accuracies = [each["metrics"]["test"]["accuracy"] for each in (wide, narrow)]
for name, summary, accuracy in zip(("25,10", "5,5"), (wide, narrow), accuracies, strict=True):
    print(
        f"fan-out {name:6} {summary['epochs']} epochs of {summary['epoch_s']:.2f} s, "
        f"test accuracy {accuracy:.3f}"
    )

# %%
# Speed is only meaningful together with the accuracy. Here the accuracy is no lower.

import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
stages = list(reversed(stages_ms(wide)))
for place, (name, summary) in enumerate({"fan-out 25,10": wide, "fan-out 5,5": narrow}.items()):
    times = [stages_ms(summary)[stage] for stage in stages]
    axes.barh([number - 0.4 * place for number in range(len(stages))], times, 0.4, label=name)
axes.set_yticks([number - 0.2 for number in range(len(stages))], stages)
axes.set(title="Work of each stage in a step", xlabel="milliseconds")
axes.legend()

# %%
# To see single threads instead of sums, record a trace with `hyrt run --trace`
# ([Traces](../docs/trace.md)). To compare two runs on one page, use `hyrt report runs/wide runs/narrow`.


def sampled_edges(name):
    """Edges that a run sampled in a step: a count, for other work on the machine changes times."""
    lines = (here / "runs" / name / "metrics.jsonl").read_text().splitlines()
    groups = [each for each in map(json.loads, lines) if each["event"] == "steps"]
    edges = sum(1e6 * each["mteps"] * each["step_s"] * len(each["losses"]) for each in groups)
    return edges / sum(len(each["losses"]) for each in groups)


assert sampled_edges("narrow") < sampled_edges("wide") / 2
assert accuracies[1] > accuracies[0] - 0.01, accuracies
folder.cleanup()
