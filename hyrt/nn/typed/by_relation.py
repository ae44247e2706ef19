"""Division of a block's edges by relation, cached for all passes over them."""

from __future__ import annotations

from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.nn.tensor_operators.tensor_split import split_tensors
from hyrt.sampling.block import Block
from hyrt.sampling.relations.relation_split import RelationSplit, split_block


def by_relation(block: Block | TensorBlock, num_relations: int) -> RelationSplit:
    """Return a block's edges by relation, cached and shared by all blocks with the same edges.

    Parameters
    ----------
    block
        Its edges are sorted by relation within a destination, and `edge_types` has their relations.
    num_relations
        Number of relations of the graph.
    """
    if isinstance(block, TensorBlock):
        if block.derived.relations is None:
            block.derived.relations = split_tensors(block, num_relations)
        relations: RelationSplit = block.derived.relations
        return relations
    keeper = block if block.kept is None else block.kept
    if keeper.relations is None:
        keeper.relations = split_block(block, num_relations)
    cached: RelationSplit = keeper.relations
    return cached
