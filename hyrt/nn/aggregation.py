"""Description of how a layer combines the source rows of a destination, shared by all devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from hyrt.checks import check_flag, check_number, check_word

Reduce = Literal["mean", "sum", "gcn", "max"]
SelfPath = Literal["none", "add", "concat"]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Aggregation of a layer, from which operators and kernel devices build their implementation.

    Raises
    ------
    ValueError
        If `reduce` or `self_path` is unknown, or a maximum would be added to the self row.
    """

    reduce: Reduce
    """`mean`: mean over the sampled neighbours. `sum`: each of k sampled neighbours out of d counts d / k
    times, so that the expectation is the sum over all neighbours. `gcn`: sum weighted by
    1 / sqrt((d_i + 1)(d_j + 1)) with full-graph in-degrees d. `max`: element-wise maximum. If edges have
    weights w, `sum` adds w x, `mean` is the sum of w x divided by the full graph's sum of w, and `gcn`
    multiplies by w and uses sums of w as in-degrees; `max` ignores weights."""
    self_path: SelfPath
    """Use of the destination's row: `none`; `add` (for gcn as a self-loop with weight 1 / (d_i + 1),
    otherwise multiplied by 1 + epsilon); `concat` (self row first, then the aggregate, so that the layer's
    f_in is twice f)."""
    epsilon: float = 0.0
    """Extra weight of the self row for `add`; unused by gcn."""
    weighted: bool = True
    """Whether edge weights are used."""

    def __post_init__(self) -> None:
        check_word("reduce", self.reduce, get_args(Reduce))
        check_word("self_path", self.self_path, get_args(SelfPath))
        check_number("epsilon", self.epsilon)
        check_flag("weighted", self.weighted)
        if self.reduce == "max" and self.self_path == "add":
            raise ValueError(
                "a maximum cannot be added to the vertex's own row: use self_path none or concat"
            )

    def width(self, features: int) -> int:
        """Return the number of result columns for input rows with `features` columns."""
        return 2 * features if self.self_path == "concat" else features

    def columns(self, features: int) -> tuple[int, int | None]:
        """Return the first result columns of the aggregate and, for `concat`, of the self row."""
        return (features, 0) if self.self_path == "concat" else (0, None)
