"""
# Predicting citations

A link predictor learns from known links, such as friendships, purchases or citations, to predict missing
links. This tutorial hides a tenth of Cora's citations and finds them among pairs of papers that do not
cite each other.
"""

# %%
# ## Train
#
# `train.objective=links` trains a link predictor. hyrt hides some citations for the tests, and samples
# pairs without a citation for comparison. The model computes a vector for each paper, its *embedding*,
# and the score of a pair is the dot product of the two embeddings. The labels of the papers are not
# used.

import hyrt
from hyrt.telemetry.events import EvaluationFinished

evaluations = []
result = hyrt.train(
    "cora",
    "graphsage",
    train={"objective": "links", "epochs": 8},
    emit=lambda event: evaluations.append(event) if isinstance(event, EvaluationFinished) else None,
)
metrics = result.metrics["test"]

# %%
# ## Evaluate
#
# The ROC AUC is the probability that a hidden citation has a higher score than a pair without a
# citation: 0.5 is random, 1 is perfect. Ranking is harder: one end of each hidden citation is replaced
# by a hundred other papers, and `hits@10` is the share of citations whose true paper is among the ten
# best.

print(f"ROC AUC {metrics['roc_auc']:.3f}")
for name in ("hits@1", "hits@10", "hits@50"):
    print(f"{name:8} {metrics[name]:.3f}")

import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
for name in ("roc_auc", "hits@10"):
    values = [each.metrics["test"][name] for each in evaluations]
    axes.plot([each.epoch for each in evaluations], values, "o-", label=name)
axes.set(title="Hidden citations", xlabel="epoch", ylabel="metric of the test links")
axes.legend()

# %%
# ## Prevent leakage
#
# A citation would be easy to find if its edge carried a message. The edges of all links of a step are
# therefore excluded from that step, and held-out links carry no messages at all. [Link
# prediction](../docs/links.md) documents the decoders, the losses, splits by time, and the scoring of
# pairs with `hyrt infer --links pairs.npy`.

assert metrics["roc_auc"] > 0.8, metrics
assert metrics["hits@1"] < metrics["hits@10"] < metrics["hits@50"]
