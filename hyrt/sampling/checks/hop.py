"""The check of neighbours that a device, or an object of another package, has drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyrt.checks import check_array, check_ids, check_kind, check_offsets, check_range
from hyrt.errors import ArgumentError
from hyrt.sampling.sampler import Hop


def check_hop(hop: Any, vertices: Any, num_vertices: int, *, relabelled: bool) -> Hop:
    """Return drawn neighbours that blocks may be made of.

    Parameters
    ----------
    hop
        What was drawn, by a device or by an object of a package's own.
    vertices
        [n] the vertices that it was drawn for.
    num_vertices
        Vertices of the graph.
    relabelled
        Whether its `sources` and `columns` are used, if it has them.

    Raises
    ------
    ArgumentError
        Naming the array and the first bad position.
    """
    drawn = check_kind("what draws neighbours returned what", hop, Hop, "return a hyrt.sampling.sampler.Hop")
    num = len(vertices)
    what = "vertices of the dtype of the given ones,"
    neighbors = check_array("neighbors of a Hop", drawn.neighbors, (vertices.dtype,), (None,), what)
    check_range("neighbors of a Hop", neighbors, num_vertices, "vertices")
    check_offsets("offsets of a Hop", drawn.offsets, num, len(neighbors), (np.int32,))
    check_array("degrees of a Hop", drawn.degrees, (np.int32,), (num,), "one int32 each")
    for name, kinds in (("weights", "f"), ("edge_types", "iu"), ("edges", "i")):
        values = getattr(drawn, name)
        if values is not None:
            check_array(f"{name} of a Hop", values, kinds, (len(neighbors),), "one number for each neighbour")
    if relabelled and drawn.sources is not None and drawn.columns is not None:
        sources = check_ids("sources of a Hop", drawn.sources, num_vertices)
        if len(sources) < num or not np.array_equal(sources[:num], vertices):
            raise ArgumentError("sources of a Hop do not begin with the given vertices: put these first")
        columns = check_array(
            "columns of a Hop", drawn.columns, (np.int32,), (len(neighbors),), "int32 places in sources"
        )
        check_range("columns of a Hop", columns, len(sources), "sources")
    return drawn
