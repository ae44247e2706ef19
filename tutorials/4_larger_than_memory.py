"""
# A graph larger than memory

The features of a graph are its largest part, and they need not fit into memory: hyrt reads them from
memory-mapped files, a few rows at a time. A device such as a GPU need not hold the graph either. This
tutorial sets memory limits that are far too small for its graph, and still trains with all features and
all edges, with the same losses.
"""

# %%
# ## Generate a graph in a folder
#
# `hyrt data generate` writes a graph as a folder with one file per array;
# `hyrt data convert mine.npz mine` converts your graph to such a folder. The graph here is small, so
# that the page runs quickly. Large graphs work in the same way.

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

folder = TemporaryDirectory()
here = Path(folder.name)
command = [sys.executable, "-m", "hyrt", "data", "generate", "community,vertices=10k,features=128", "big"]
subprocess.run(command, cwd=here, check=True, stdout=subprocess.DEVNULL)
for file in sorted((here / "big").iterdir()):
    print(f"{file.stat().st_size / 2**20:8.2f} MiB  {file.name}")

# %%
# ## Keep features on disk
#
# `hyrt.load` maps the features of a folder to memory. The operating system reads the pages that are
# used, and frees them again if the memory is needed for other data.

import psutil

import hyrt

graph = hyrt.load(here / "big")
print(graph)
mapped = [Path(each.path).name for each in psutil.Process().memory_maps() if str(here) in each.path]
print("mapped to memory:", *sorted(mapped))

# %%
# ## Train on mini-batches
#
# A mini-batch contains the rows that its targets and their sampled neighbours need, and only a few
# mini-batches are in flight at once. Its memory does not grow with the graph.

settings = {"train": {"epochs": 2}, "data": {"batch_size": 512}, "sampler": {"fanout": [5, 5]}}
batches = hyrt.train(graph, "graphsage", **settings)
print(f"mini-batches: test accuracy {batches.metrics['test']['accuracy']:.3f}")

# %%
# ## Train on the full graph with a host memory limit
#
# A full-graph step keeps rows of every vertex in every layer. `fullgraph.host_memory` limits the memory
# of these matrices. Matrices that exceed the limit are offloaded to a file, and the losses have the same
# bits.

from hyrt.telemetry.events import EpochEnded, Notice


def losses_of(model="graphsage", **more):
    """Return the losses of three epochs on the full graph; prints what hyrt has to say meanwhile."""
    events = []
    settings = {"full_graph": True, "train": {"epochs": 3}, "balance": {"predict": False}}
    hyrt.train(graph, model, emit=events.append, **settings, **more)
    for each in events:
        if isinstance(each, Notice):
            print("   ", each.text)
    return [each.loss for each in events if isinstance(each, EpochEnded)]


print("no limit")
free = losses_of()
print("at most 1 MiB of matrices")
bounded = losses_of(fullgraph={"host_memory": "1MiB"})
print("equal in every bit:", free == bounded)

# %%
# ## Train on the full graph with a small device
#
# A device with separate memory holds a few *chunks* of the graph at a time: vertices are divided into
# intervals, and a chunk is the edges from one interval to another. hyrt uses the smallest number of
# intervals that fits. With an OpenCL driver for CPUs, you can try this without a GPU.

from hyrt.device.discovery import survey_devices

has_opencl = any(each.kind == "opencl" and each.found for each in survey_devices())
if has_opencl:
    print("OpenCL with at most 8 MiB")
    small = losses_of(devices=["opencl"], fullgraph={"device_memory": "8MiB"})
    difference = max(abs(a - b) for a, b in zip(free, small, strict=True))
    print(f"largest difference between the losses: {difference:.0e}")
else:
    print("there is no OpenCL driver here: see `hyrt devices`")

# %%
# Another device adds the sums in another order, so the last digits differ.
#
# To check the requirements of a graph before you start:
#
#     hyrt predict --data big --model graphsage --full-graph
#     hyrt data info big --memory graphsage
#
# [Full-graph training](../docs/full-graph.md) compares full-graph and mini-batch training.

assert "features.npy" in mapped
assert batches.metrics["test"]["accuracy"] > 0.6
assert free == bounded
assert not has_opencl or difference < 1e-4
folder.cleanup()
