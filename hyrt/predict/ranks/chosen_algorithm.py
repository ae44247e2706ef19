"""The algorithm that the cost model says is fastest for full-graph training on the ranks of a run."""

from __future__ import annotations

from hyrt_perfmodel.communication.full_graph_epoch import FullGraphWork, fastest, why
from hyrt_perfmodel.communication.network import Network

from hyrt.config import Config
from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.graph.partition.one_part import open_part
from hyrt.graph.source import open_graph
from hyrt.predict.calibrate.store import usable
from hyrt.predict.ranks.full_graph_on_ranks import (
    KnownParts,
    candidates,
    full_graph_work,
    work_at_assumed_rates,
)
from hyrt.predict.this_run import devices_of
from hyrt.predict.workload import sampled_workload


def chosen_algorithm(config: Config, ranks: int, network: Network) -> tuple[str, int, str]:
    """The algorithm, its replication, and why, in a sentence.

    Parameters
    ----------
    config
        All settings; the data are in parts.
    ranks
        How many ranks train.
    network
        What joins them.

    Raises
    ------
    ConfigError
        If they can follow no algorithm with these parts.
    """
    folder = config.data.source
    # Rank 0 has this one under every algorithm, and need not have others.
    part = open_part(folder, 0)
    num_parts = part.manifest.num_parts
    graph = part.graph.with_features(part.rows)
    if part.manifest.topology == "split":
        graph = open_graph(folder, normalize="none")
    work, where = _work(config, graph)
    known = [KnownParts(part.homes, num_parts)]
    found = candidates(graph.topology, known, ranks, work, network)
    if not found:
        raise ConfigError(
            f"{folder}: {ranks} ranks cannot share its {num_parts} parts evenly: start a number of ranks "
            f"that divides {num_parts}, or partition again"
        )
    best = fastest(found)
    text = (
        f"distributed.algorithm=auto: {why(found)} (the network does {network.gb_s * 1e3:,.3g} MB/s and "
        f"{network.latency_s * 1e6:,.3g} us a message; computing is {where})"
    )
    return best.algorithm, best.replication, text


def _work(config: Config, graph: Graph) -> tuple[FullGraphWork, str]:
    """The epoch of one machine, and where its times are from."""
    calibration, _ = usable()
    if calibration is None:
        return work_at_assumed_rates(config, graph), "assumed, for this machine is not calibrated"
    try:
        platform = devices_of(config, calibration.platform)
        work = full_graph_work(config, graph, platform, sampled_workload(config, graph))
    except (ConfigError, ValueError):
        return work_at_assumed_rates(config, graph), "assumed, for these devices were not calibrated"
    return work, "that of the calibration"
