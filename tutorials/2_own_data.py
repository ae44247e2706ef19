"""
# Training on CSV files

A shop has a table of its customers and a list of recommendations between customers. Some customers have
chosen a plan, and the shop would like to predict the plans of the other customers. In this tutorial, two
CSV files become a graph, a model is trained on it, and its predictions are written to a CSV file.
"""

# %%
# ## Create two files
#
# You already have your files. The files on this page are generated: they describe customers, and
# customers who recommend the shop to each other have similar tastes.

import csv
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

folder = TemporaryDirectory()
here = Path(folder.name)
plans = ["basic", "plus", "family"]
draw = np.random.default_rng(7)
taste = draw.integers(3, size=900)
with open(here / "customers.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["name", "age", "visits", "spent", "plan"])
    for number, kind in enumerate(taste):
        age, visits, spent = draw.normal([35 + 5 * kind, 10 - 2 * kind, 60 + 20 * kind], [12, 4, 40])
        plan = plans[kind] if draw.random() < 0.6 else ""
        writer.writerow([f"customer-{number}", round(age), round(visits), round(spent, 2), plan])
with open(here / "recommended.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["from", "to"])
    for number, kind in enumerate(taste):
        alike = draw.choice(np.flatnonzero(taste == kind), 4)
        for other in {*alike, *draw.choice(900, 2)} - {number}:
            writer.writerow([f"customer-{number}", f"customer-{other}"])
for name in ("customers.csv", "recommended.csv"):
    print(name, *(here / name).read_text().splitlines()[:3], sep="\n    ")

# %%
# ## Read the files
#
# Vertices are numbers that count from 0, so each name first gets a number. The columns of the table have
# different units; each column is scaled to mean 0 and deviation 1, because otherwise the largest column
# would dominate the others. A customer without a plan has the label -1, which means unknown. ("One
# command instead", below, does not need this code.)

with open(here / "customers.csv", newline="") as file:
    customers = list(csv.DictReader(file))
with open(here / "recommended.csv", newline="") as file:
    pairs = list(csv.DictReader(file))
number_of = {customer["name"]: number for number, customer in enumerate(customers)}
features = np.array(
    [[float(each[key]) for key in ("age", "visits", "spent")] for each in customers], np.float32
)
features = (features - features.mean(0)) / features.std(0)
labels = np.array([plans.index(each["plan"]) if each["plan"] else -1 for each in customers])
edges = np.array([[number_of[each["from"]], number_of[each["to"]]] for each in pairs])
print(f"{len(customers)} customers, {(labels >= 0).sum()} of them with a plan, {len(edges)} recommendations")

# %%
# ## Split the labels
#
# Of the customers with a plan, 60 % train the model, 20 % choose the best epoch, and 20 % test the
# model.

known = draw.permutation(np.flatnonzero(labels >= 0))
parts = np.split(known, [int(0.6 * len(known)), int(0.8 * len(known))])
masks = {
    f"{name}_mask": np.isin(np.arange(len(labels)), part)
    for name, part in zip(("train", "val", "test"), parts, strict=True)
}

# %%
# ## Write the graph
#
# hyrt stores edges by their destination: `indices[indptr[v]:indptr[v + 1]]` are the vertices with an
# edge into `v`, in ascending order. A recommendation contains information about both customers, so each
# pair becomes two edges. `np.unique` sorts the edges and drops duplicates.

both = np.concatenate([edges, edges[:, ::-1]])
destinations, sources = np.unique(both[:, ::-1], axis=0).T
indptr = np.concatenate([[0], np.cumsum(np.bincount(destinations, minlength=len(labels)))])
np.savez(
    here / "shop.npz",
    indptr=indptr.astype(np.int64),
    indices=sources.astype(np.int32),
    features=features,
    labels=labels.astype(np.int64),
    **masks,
)

import hyrt

graph = hyrt.load(here / "shop.npz")
print(graph)

# %%
# `hyrt.load` checks every array. If an array is invalid, the error names the file, the key and the first
# bad position. [Data](../docs/data.md#schema) documents the whole schema, including several labels or
# numbers to predict.
#
# ## One command instead
#
# `hyrt data import` makes a graph of such tables (it needs `pip install "hyrt[import]"`). It guesses the
# meaning of each column. A schema sets the two facts that it cannot guess: the labels are the names in
# the column `plan`, and a recommendation counts in both directions. To start such a schema,
# `hyrt data import --print-schema FILES` prints the guess as a schema with explanations. The import does
# not scale features, so the rest of this page uses the graph above, whose features are scaled.

import subprocess
import sys


def hyrt_command(*words):
    """Run a command of hyrt in the folder of the files, and show what it prints."""
    print("$ hyrt", *words)
    command = [sys.executable, "-m", "hyrt", *words]
    print(subprocess.run(command, cwd=here, check=True, stdout=subprocess.PIPE, text=True).stdout)


schema = """
ids: names
edges: {files: [recommended.csv], source: from, target: to, undirected: true}
vertices:
  files: [customers.csv]
  id: name
  label: [plan]
  label_kind: names
  features: [age, visits, spent]
"""
(here / "schema.yaml").write_text(schema)
hyrt_command(
    *("data", "import", "recommended.csv", "customers.csv", "--schema", "schema.yaml", "--output", "imported")
)
imported = hyrt.load(here / "imported")
assert np.array_equal(imported.topology.indices, graph.topology.indices)

# %%
# Now `hyrt run --data imported data.normalize=standard` would train on this graph; the setting scales
# the features.
#
# ## Train
#
# GraphSAGE combines each customer with the mean of its neighbours. `hyrt run` trains the model, and
# writes settings, metrics, weights and a report to a folder. In a shell, type only the words of the
# command, without the Python code around them.

hyrt_command(
    *("run", "--data", "shop.npz", "--model", "graphsage", "--full-graph", "--epochs", "60"),
    *("--name", "shop", "--quiet"),
)

# %%
# ## Measure the benefit of the graph
#
# For comparison, train the same model on the same customers without the recommendations, so that it
# reads only the table.

settings = {"full_graph": True, "train": {"epochs": 60}}
table = dict(np.load(here / "shop.npz"))
np.savez(here / "table.npz", **{**table, "indptr": np.zeros_like(indptr), "indices": np.zeros(0, np.int32)})
alone = hyrt.train(hyrt.load(here / "table.npz"), "graphsage", **settings).metrics["test"]["accuracy"]
run = hyrt.load_run(here / "runs" / "shop")
helped = run.metrics["test"]["accuracy"]
print(f"accuracy with the recommendations {helped:.2f}, with the table alone {alone:.2f}")

# %%
# ## Predict the unknown plans

hyrt_command("infer", "runs/shop", "--output", "guesses.npy", "--output-kind", "classes")
guesses = np.load(here / "guesses.npy")
unknown = np.flatnonzero(labels < 0)
with open(here / "guesses.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["name", "plan"])
    writer.writerows([customers[number]["name"], plans[guesses[number]]] for number in unknown)
print(*(here / "guesses.csv").read_text().splitlines()[:4], sep="\n")

# %%
# The files are generated, so the true plans of these customers are also known.

right = (guesses[unknown] == taste[unknown]).mean()
print(f"{right:.0%} of the {len(unknown)} guesses are right")

# %%
# ## Load a graph of PyG or DGL
#
# A graph of another library needs no file: `hyrt.load(data)` accepts a PyG `Data` with `x`,
# `edge_index`, `y` and three masks, and `hyrt.load(g)` a DGL graph with `feat`, `label` and three masks
# in `ndata`. See [Migrating from PyG](../docs/from-pyg.md) and [Migrating from
# DGL](../docs/from-dgl.md).

try:
    import torch
    from torch_geometric.data import Data
except ImportError:
    print("PyG is not installed, so this part is left out")
else:
    arrays = {"x": features, "edge_index": np.stack([sources, destinations]), "y": labels, **masks}
    data = Data(**{key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in arrays.items()})
    from_pyg = hyrt.load(data)
    print(from_pyg)
    assert np.array_equal(from_pyg.topology.indices, graph.topology.indices)

# %%
# The last lines check the results of this tutorial: the recommendations help, and most predictions are
# correct.

folder.cleanup()
assert helped > alone + 0.1, (helped, alone)
assert right > 0.7, right
