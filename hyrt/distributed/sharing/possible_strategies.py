"""Which strategies go with a sampler, and with edges that are split."""

from __future__ import annotations

from hyrt.config import Config


def why_impossible(config: Config, strategy: str, *, edges_are_split: bool = False) -> str:
    """Why ranks cannot follow a strategy, and what to do; empty where they can.

    Parameters
    ----------
    config
        All settings, of which the sampler counts.
    strategy
        The name of the strategy.
    edges_are_split
        Whether each rank has the edges into its own vertices alone.
    """
    sampler, given = config.sampler, f"distributed.strategy={strategy}"
    if sampler.unit != "target" and strategy != "model-centric":
        return (
            f"{given} places targets, but sampler.kind={sampler.kind} trains {sampler.unit}s: give "
            "distributed.strategy=model-centric"
        )
    if sampler.draws_whole_steps and strategy == "local":
        return (
            f"{given} draws targets of its own, but sampler.kind={sampler.kind} draws edges for the targets "
            "of whole steps: give another strategy"
        )
    if edges_are_split and strategy in ("p3", "naive-migration"):
        return (
            f"{given} samples the mini-batches of all ranks, and the edges are split among the parts: "
            "partition with --topology replicated, or give another strategy"
        )
    return ""


def why_no_links(config: Config, strategy: str | None = None) -> str:
    """Why ranks cannot predict links so, and what to do; empty where they can, or do not.

    Parameters
    ----------
    config
        All settings.
    strategy
        The name of a strategy; that of the settings by default.
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
    """Why so many ranks cannot have the parts of a step that the settings give; empty where they can."""
    shares = config.distributed.given_shares
    if shares is None or len(shares) == num_ranks:
        return ""
    return (
        f"distributed.shares gives {len(shares)} ranks their parts, and there are {num_ranks} ranks: give a "
        "number for each, or measured"
    )
