"""
# Two ranks on a laptop

Several machines train one model together: each machine has a part of the graph and runs one process,
called a rank. Two ranks on one computer work in the same way, so you can try this before you have two
machines. The losses equal the losses of a single process.
"""

# %%
# ## Partition the graph
#
# Each rank reads only the features of its part, and requests all other rows from the other rank. Good
# parts therefore have few edges between them; METIS finds such parts (`pip install "hyrt[partition]"`).

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

folder = TemporaryDirectory()
here = Path(folder.name)


def command(*words):
    """Run a module of Python, as `python -m` does, and show what it prints."""
    print("$ python -m", *words)
    # torchrun sets this variable too, but warns unless it is already there. hyrt chooses its threads itself.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", *words]
    ran = subprocess.run(line, cwd=here, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    print(ran.stdout)


command("hyrt", "partition", "--data", "cora", "--parts", "2", "--output", "parts")

# %%
# ## Train on two ranks
#
# torchrun, which is part of torch, starts the ranks and connects them. On multiple machines, run the
# same command on each machine, with `--nnodes` and `--rdzv-endpoint` ([Multiple
# machines](../docs/distributed.md)).

command(
    *("torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    *("-m", "hyrt", "run", "--data", "parts", "--model", "graphsage", "--epochs", "6"),
    *("--name", "two", "--quiet", "balance.predict=false"),
)

# %%
# In every step, the ranks add up their gradients, divide them once by the number of all targets, and
# make the same update. The number of ranks therefore does not change the result.
#
# ## Train in one process
#
# The folder of parts is a dataset like any other.

import hyrt
from hyrt.telemetry.events import StepMetrics

alone = []
hyrt.train(
    hyrt.load(here / "parts"),
    "graphsage",
    train={"epochs": 6},
    balance={"predict": False},
    emit=lambda event: alone.extend(event.losses) if isinstance(event, StepMetrics) else None,
)
records = [json.loads(line) for line in (here / "runs" / "two" / "metrics.jsonl").open()]
together = [loss for each in records if each["event"] == "steps" for loss in each["losses"]]
difference = max(abs(a - b) for a, b in zip(together, alone, strict=True))
print(f"{len(alone)} steps; the losses differ by at most {difference:.0e}")

# %%
# ## Inspect the communication
#
# The summary of a run on several ranks counts the sent bytes by purpose, and so does its report.

sent = json.loads((here / "runs" / "two" / "summary.json").read_text())["distributed"]["bytes_sent"]
for purpose, size_bytes in sorted(sent.items(), key=lambda each: -each[1]):
    if size_bytes:
        print(f"{purpose:12} {size_bytes / 2**20:8.2f} MiB")

# %%
# On a graph as small as Cora, gradients are the largest part of the communication. On large graphs,
# feature rows are the largest part. `distributed.strategy` selects other communication patterns, and
# `hyrt predict --ranks 4 --network 10gbit` predicts the time of each strategy.

assert difference < 1e-4, difference
assert sent["gradients"] > sent["rows"] > 0
folder.cleanup()
