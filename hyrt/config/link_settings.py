"""Settings of link prediction."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from hyrt.section import Count, Fraction, NoTruth, Section


def _number_or_all(value: object) -> object:
    if value == "all" or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**20):
        return value
    raise ValueError("give a whole number of at least 1, or all")


class LinksConfig(Section):
    relation: str | None = None
    """For typed graphs, the relation whose edges are predicted: its name, or `author/writes/paper` if several
    have that name. Not needed if there is only one relation."""
    split: str = "random"
    """Which edges are held out for evaluations: `random`; `time`, the latest ones by the times of the
    dataset's edges; or a `.npz` file of pairs of vertices: `val` and `test`, and optionally `train`,
    `train_neg`, `val_neg` and `test_neg`."""
    times: str | None = None
    """With `split=time`, for a dataset whose edges have no times: a `.npz` file with `edges`, [n, 2] sources
    and destinations in any order, and `times`, a number for each of them."""
    val: Fraction = 0.05
    """The fraction of the links that are validation links."""
    test: Fraction = 0.1
    """The fraction of the links that are test links."""
    supervision: Fraction = 0.0
    """The fraction of the training links that are predicted and carry no messages; the rest only carry
    messages. With 0, every training link does both."""
    exclude: Literal["both", "edges", "none"] | None = None
    """Which edges carry no messages in a step. `edges` leaves out the edges of the step's links, `both`
    leaves out all edges between their vertices, in either direction and of any relation, and `none` leaves
    out no edges. By default `both`; with `--full-graph`, whose steps train all links, `none`."""
    negatives: Literal["uniform", "degree", "batch", "given"] = "uniform"
    """How pairs that are not links are drawn in training. Each replaces one end of a link: `uniform` by any
    vertex, `degree` by a vertex with a chance that grows with its degree, `batch` by the corresponding end of
    another link of the step; a pair that is an edge is drawn again. `given` draws pairs from `train_neg` of
    the split's file."""
    num_negatives: Annotated[int, Field(ge=1, le=1024), NoTruth] = 1
    """The number of pairs that are not links, for each link of a step."""
    decoder: Literal["dot", "distmult", "transe", "mlp"] = "dot"
    """How a pair of embeddings is scored: by their inner product (`dot`), by an inner product with a weight
    for each column (`distmult`), by the negative distance after a learned translation (`transe`), or by a
    perceptron with one hidden layer that reads both (`mlp`)."""
    width: Count | None = None
    """The width of the embeddings, which are the output of the model; by default `model.hidden`."""
    loss: Literal["bce", "ranking"] = "bce"
    """`bce` classifies each pair as a link or not, by binary cross entropy; `ranking` trains links to score
    above the pairs drawn for them."""
    candidates: Annotated[
        int | Literal["all"],
        WithJsonSchema({"type": "integer ≥ 1 or `all`"}),
        BeforeValidator(_number_or_all),
    ] = 100
    """The number of different vertices that are drawn to rank each end of a link among them, for the metrics
    `mrr` and `hits@k`; or `all` vertices. A vertex whose pair with the other end is a known edge is left out
    of the ranking."""

    @model_validator(mode="after")
    def _check_consistency(self) -> LinksConfig:
        fields = type(self).model_fields
        if self.times is not None and self.split != "time":
            raise ValueError(
                f"links.times has no effect with links.split={self.split}: set links.split=time, or omit it"
            )
        if self.is_given:
            for name in ("val", "test", "supervision"):
                if getattr(self, name) != fields[name].default:
                    raise ValueError(
                        f"links.{name} has no effect with links.split={self.split}, whose links are those of "
                        "the file: omit it"
                    )
        elif self.negatives == "given":
            raise ValueError(
                "links.negatives=given draws from train_neg of a file: give links.split=FILE.npz"
            )
        if self.val + self.test >= 1:
            raise ValueError(f"links.val={self.val:g} and links.test={self.test:g} leave nothing to train on")
        return self

    @property
    def is_given(self) -> bool:
        """Whether the split is read from a file."""
        return self.split not in ("random", "time")

    @property
    def is_default(self) -> bool:
        """Whether all settings are at their defaults."""
        return self == LinksConfig()
