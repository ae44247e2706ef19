"""Compatibility of strategies with samplers, link prediction and partitioned topology."""

from __future__ import annotations

from hyrt.config import Config


def why_impossible(config: Config, strategy: str, *, edges_are_split: bool = False) -> str:
    """Return an error message if the sampler or the topology does not support a strategy, otherwise "".

    Parameters
    ----------
    config
        All settings; only the sampler is used.
    strategy
        Name of the strategy.
    edges_are_split
        Whether each rank has only the edges into its vertices.
    """
    sampler, setting = config.sampler, f"distributed.strategy={strategy}"
    if sampler.unit != "target" and strategy != "model-centric":
        return (
            f"{setting} places targets, but sampler.kind={sampler.kind} trains {sampler.unit}s: give "
            "distributed.strategy=model-centric"
        )
    if sampler.draws_whole_steps and strategy == "local":
        return (
            f"{setting} samples targets locally, but sampler.kind={sampler.kind} samples edges for the "
            "targets of whole steps: use another strategy"
        )
    if edges_are_split and strategy in ("p3", "naive-migration"):
        return (
            f"{setting} samples the mini-batches of all ranks, but these parts were made with --topology "
            "split: partition with --topology replicated, or use another strategy"
        )
    return ""


def why_no_links(config: Config, strategy: str | None = None) -> str:
    """Return an error message if the settings do not support link prediction on ranks, otherwise "".

    Parameters
    ----------
    config
        All settings.
    strategy
        Name of the strategy; default: the configured one.
    """
    strategy = strategy or config.distributed.strategy
    if not config.train.predicts_links:
        return ""
    if config.sampler.whole_graph:
        return "train.objective=links trains the whole graph in one process: omit --full-graph, or torchrun"
    if strategy not in ("home", "model-centric"):
        return (
            f"distributed.strategy={strategy} places vertices, and train.objective=links "
            "trains links: give home or model-centric"
        )
    if config.distributed.cache is not None:
        return "distributed.cache counts visits of vertices: omit it with train.objective=links"
    return ""


def why_no_shares(config: Config, num_ranks: int) -> str:
    """Return an error message if the configured shares do not match the number of ranks, otherwise ""."""
    shares = config.distributed.given_shares
    if shares is None or len(shares) == num_ranks:
        return ""
    return (
        f"distributed.shares has {len(shares)} numbers, but there are {num_ranks} ranks: set one number "
        "per rank, or measured"
    )
