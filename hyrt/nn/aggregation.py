"""How a layer combines the rows of a destination's sources, in the words that every device knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from hyrt.checks import check_flag, check_number, check_word

Reduce = Literal["mean", "sum", "gcn", "max"]
SelfPath = Literal["none", "add", "concat"]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """The description of an aggregation, from which operators and kernel devices compile their own form.

    Raises
    ------
    ValueError
        If a word is unknown, or a maximum is to be added to the own row.
    """

    reduce: Reduce
    """`mean` over the sampled neighbours; `sum`, where each of k sampled neighbours out of d counts d / k
    times, so that the sum's expectation is the full one; `gcn`, the sum weighted by 1 / sqrt((d_i + 1)(d_j +
    1)) with full-graph in-degrees d; `max`, elementwise. Where edges have weights w, `sum` adds w x, `mean`
    is the sum of w x divided by the full graph's sum of w, and `gcn` multiplies by w, with sums of w for
    in-degrees; `max` knows no weights."""
    self_path: SelfPath
    """The destination's own row: `none`, `add` (for gcn the self loop, weighted 1 / (d_i + 1); else times 1 +
    epsilon), `concat` (own row first, then the aggregate: the layer's f_in is twice f)."""
    epsilon: float = 0.0
    """The extra weight of the own row for `add`, except for gcn."""
    weighted: bool = True
    """Whether weights of edges count."""

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
        """Columns of the result for rows of `features` columns."""
        return 2 * features if self.self_path == "concat" else features

    def columns(self, features: int) -> tuple[int, int | None]:
        """Columns of the result at which the aggregate and, for `concat`, the own row start."""
        return (features, 0) if self.self_path == "concat" else (0, None)
