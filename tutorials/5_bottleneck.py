"""
# Find the bottleneck, and mend it

A step of training goes through stages: sample, load, transfer, propagate, synchronize. They overlap, so the
slowest one sets the pace, and making any other stage faster gains nothing. Here a run shows which stage is
the slowest, and one setting makes it faster.
"""

# %%
# ## A run
#
# GraphSAGE on a generated graph, with 25 sampled neighbours of each target and 10 of each of those. The
# resource manager is off (`balance.policy=static`), so that only our own change has an effect.

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
# ## What bounds it
#
# `report.html` in the run folder has a section with this name. It shows how long each stage works and waits
# in a step, and how many mini-batches queue up behind it. Open it in a browser. The stage marked with ◀ is
# the slowest. The same figures are in `summary.json`:


def stages_ms(summary):
    """Milliseconds of work that each stage has in a step."""
    return {stage: 1e3 * seconds for stage, seconds in summary["stages_s"].items()}


bottleneck = max(stages_ms(wide), key=stages_ms(wide).get)
for stage, time_ms in stages_ms(wide).items():
    print(f"{stage:12} {time_ms:8.2f} ms {'◀' if stage == bottleneck else ''}")

# %%
# ## What can be done about it
#
# | the slowest is | try |
# | --- | --- |
# | sample | fewer neighbours (`sampler.fanout`), `sampler.kind=labor`, more threads |
# | load | narrow rows (`data.feature_dtype=int8`), a folder on a faster disk |
# | transfer | narrow rows, rows that stay on the device (`data.cache`) |
# | propagate | fewer neighbours, fewer hidden units, one more device |
# | synchronize | larger batches |
#
# Unless you turn it off, the resource manager moves threads and targets to the slowest stage by itself; the
# report lists each decision with its reason. `hyrt predict` says what would make a run faster, without
# running it.
#
# ## Mend it
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
# Speed means something only beside the accuracy that was reached. Here the accuracy is no lower.

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
# To see single threads instead of sums, record a trace with `hyrt run --trace` ([See what ran
# where](../docs/trace.md)), and to compare two runs on one page, write `hyrt report runs/wide runs/narrow`.


def sampled_edges(name):
    """Edges that a run sampled in a step: a count, for other work on the machine changes times."""
    lines = (here / "runs" / name / "metrics.jsonl").read_text().splitlines()
    groups = [each for each in map(json.loads, lines) if each["event"] == "steps"]
    edges = sum(1e6 * each["mteps"] * each["step_s"] * len(each["losses"]) for each in groups)
    return edges / sum(len(each["losses"]) for each in groups)


assert sampled_edges("narrow") < sampled_edges("wide") / 2
assert accuracies[1] > accuracies[0] - 0.01, accuracies
folder.cleanup()
