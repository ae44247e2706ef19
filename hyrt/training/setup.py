"""Creation of a run's model, objective, sampler, threads and split from settings, with checks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from hyrt_perfmodel.policy import Threads

from hyrt.checks import show
from hyrt.config import Config
from hyrt.config.compatibility import Component, check_compatibility, list_components, list_features
from hyrt.device.discovery import split_by_shares
from hyrt.errors import ConfigError, DataError
from hyrt.graph.check import check_all_classes
from hyrt.graph.graph import Graph
from hyrt.graph.links.link_split import LinkGraph
from hyrt.nn.architecture import Architecture
from hyrt.nn.conv_stack import check_forward_signature
from hyrt.nn.hetero.hetero_gnn import HeteroGNN, get_graph_metadata
from hyrt.nn.link_gnn import LINK_HEADS, HeteroLinkGNN, LinkGNN
from hyrt.nn.model import GNN
from hyrt.nn.model_checks import check_edge_values, check_types, drop_replaced_loops, needs_loops
from hyrt.nn.models.model_kind import (
    EDGE_FEATURES,
    EDGE_TYPES,
    supports_edge_features,
    supports_edge_types,
)
from hyrt.nn.torch_threads import use_one_torch_thread
from hyrt.objective import Objective
from hyrt.objective.link_prediction import DECODERS
from hyrt.objective.metrics import check_class_weights
from hyrt.objective.objective import OBJECTIVES
from hyrt.runtime.hardware import available_cores
from hyrt.runtime.workers import Workers
from hyrt.sampling.block_builder import EdgeExcludingSampler
from hyrt.sampling.full_sampler import FullSampler
from hyrt.sampling.link_sampler import FullLinkSampler, LinkSampler, NegativeSampler
from hyrt.sampling.sampler import Sampler
from hyrt.sampling.sampler_settings import SAMPLERS
from hyrt.telemetry.events import RunPrediction


def check_run(config: Config, graph: Graph, module: torch.nn.Module | None = None) -> None:
    """Check that the settings, the graph and the caller's module, if there is one, work together.

    Raises ConfigError with the first conflict in the compatibility table.
    """
    components = [*list_components(config, has_configured_model=module is None)]
    if module is not None:
        components.append(_module_component(module))
    check_compatibility(components, list_features(config, graph))


def _module_component(module: torch.nn.Module) -> Component:
    """Return the component of a module of the caller; only `HeteroGNN` has maps for vertex types."""
    is_hetero = isinstance(module, HeteroGNN)
    remedy = (
        "use hyrt.nn.stack"
        if is_hetero
        else "use a kind such as model='rgcn', or your own layers in hyrt.nn.hetero_stack "
        "(docs/heterogeneous.md)"
    )
    return Component(
        type(module).__name__, ["homogeneous" if is_hetero else "hetero"], lambda refused, features: remedy
    )


def build_link_sampler(config: Config, graph: Graph, links: LinkGraph) -> Sampler:
    """Create the configured sampler, with the endpoints of the training links as targets.

    The sampler has passed `check_run`. Raises ConfigError if it declares support of links but has none.
    """
    kind, split, settings = config.sampler.kind, links.split, config.links
    batch_size = min(config.data.batch_size, len(split.train))
    around = config.sampler.build(
        graph,
        np.unique(split.train),
        layers=config.model.layers,
        batch_size=batch_size,
        seed=config.seed,
    )
    negatives = NegativeSampler(
        *(settings.negatives, settings.num_negatives, config.seed),
        *(links.train_edges, links.ends, split.train_negatives),
    )
    if isinstance(around, FullSampler):
        return FullLinkSampler(split.train, around, negatives)
    if isinstance(around, EdgeExcludingSampler):
        return LinkSampler(
            *(split.train, around, negatives, graph.topology),
            *(config.excluded_links, batch_size, config.seed, links.relation),
        )
    raise ConfigError(
        f"{SAMPLERS.describe(kind)} declares that it supports links, but {type(around).__name__} has no "
        "method `exclude`: add the method, or remove 'links' from `supports`"
    )


def assign_threads(config: Config, host_trainers: int = 1, expected: RunPrediction | None = None) -> Threads:
    """Return the configured thread counts; counts of 0 are predicted, or follow from the available cores.

    Sampling is the lightest stage, so it gets half of the cores. Loading may use all cores: its chunks are
    small, so the cores go to the slowest stage. The `host_trainers` trainers on host cores share the cores.
    """
    cores = available_cores()
    runtime = config.runtime
    if config.sampler.is_full_graph:
        # Full-graph steps need no sampling and no loading.
        chosen = Threads(sample=1, load=1, train=cores)
    elif expected is not None:
        chosen = expected.threads
    else:
        chosen = Threads(sample=max(1, cores // 2), load=cores, train=max(1, cores // max(1, host_trainers)))
    return Threads(
        sample=runtime.sample_threads or chosen.sample,
        load=runtime.load_threads or chosen.load,
        train=runtime.train_threads or chosen.train,
    )


def evaluation_workers(threads: Threads) -> Workers:
    """Create the threads for evaluation and inference; the caller must close them."""
    return Workers(threads.train, "hyrt.evaluate", on_start=use_one_torch_thread)


def architecture(config: Config, graph: Graph) -> Architecture:
    """Return the configured model architecture, with the input and output widths of a graph."""
    model, options = config.model, dict(config.model.options)
    if graph.topology.edge_width and supports_edge_features(model.kind):
        options.setdefault(EDGE_FEATURES, graph.topology.edge_width)
    shape = get_graph_metadata(graph)
    if shape is not None and supports_edge_types(model.kind):
        options.setdefault(EDGE_TYPES, shape.num_relations)
    return Architecture(
        kind=model.kind,
        in_features=graph.num_features if shape is None else model.hidden,
        hidden=model.hidden,
        num_classes=graph.num_outputs,
        layers=model.layers,
        aggregate=model.aggregate,
        heads=model.heads,
        dropout=model.dropout,
        input_dropout=model.input_dropout,
        attention_dropout=model.attention_dropout,
        norm=model.norm,
        residual=model.residual,
        low_precision=config.train.precision == "bf16",
        options=options,
        shape=shape,
    )


def build_model(config: Config, graph: Graph) -> GNN:
    """Create the configured model with weights from the run's seed; the global generator does not change."""
    decoder = config.links.decoder
    check_run(config, graph)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if graph.links is not None and decoder in LINK_HEADS:
            made = architecture(config, graph)
            made_as = LinkGNN if graph.types is None else HeteroLinkGNN
            return made_as(made, decoder, DECODERS[decoder].columns(made.num_classes))
        return (GNN if graph.types is None else HeteroGNN)(architecture(config, graph))


def select_edges(config: Config, graph: Graph) -> Graph:
    """Return the graph with the edges that the configured model reads: see `drop_replaced_loops`."""
    # The model is needed only if the data has self-loops.
    return drop_replaced_loops(graph, build_model(config, graph)) if graph.topology.num_self_loops else graph


def fitted_objective(config: Config, graph: Graph, targets: np.ndarray) -> Objective:
    """Create the configured objective and fit it to the training targets.

    Raises ConfigError if the objective rejects its options or does not match the labels.
    """
    objective = config.build_objective(graph.labels)
    if graph.links is not None:
        return objective
    with OBJECTIVES.wrap_errors(objective.name, "fit_to_targets"):
        fitted = objective.fit_to_targets(graph.vertices.select_labels(targets), graph.num_outputs)
    if not isinstance(fitted, type(objective)):
        raise ConfigError(
            f"{OBJECTIVES.describe(objective.name)}: fit_to_targets must return the objective, got "
            f"{show(fitted)}"
        )
    return fitted


def build_sampler(
    config: Config, graph: Graph, targets: np.ndarray, objective: Objective | None = None
) -> Sampler:
    """Create the configured sampler over the training targets [n].

    `objective` (default: as configured) provides class weights. Raises ConfigError if the sampler cannot be
    created or its steps have more units than configured, and DataError if there are no targets.
    """
    if not len(targets):
        raise DataError(
            f"{graph.name}: split {config.data.split} has no training vertices: set train_mask for some, or "
            "choose another data.split"
        )
    check_compatibility(list_components(config, has_configured_model=False), list_features(config, graph))
    kind = config.sampler.kind
    if graph.links is not None:
        return build_link_sampler(config, graph, graph.links)
    objective = objective or fitted_objective(config, graph, targets)
    with OBJECTIVES.wrap_errors(objective.name, "class_weights"):
        class_weights = objective.class_weights(graph.vertices.select_labels(targets), graph.num_outputs)
    class_weights = check_class_weights(objective.name, class_weights, graph.num_outputs)
    with SAMPLERS.wrap_errors(kind, "build"):
        sampler = config.sampler.build(
            graph,
            targets,
            layers=config.model.layers,
            batch_size=config.data.batch_size,
            seed=config.seed,
            class_weights=class_weights,
        )
    if not callable(getattr(sampler, "units", None)):
        raise ConfigError(
            f"{SAMPLERS.describe(kind)}: build must return a hyrt.sampling.sampler.Sampler, got "
            f"{type(sampler).__name__}"
        )
    with SAMPLERS.wrap_errors(kind, "units"):
        max_units = config.sampler.units_per_step(min(config.data.batch_size, len(targets)))
        units = len(sampler.units(0))
    if not 0 < units <= max_units:
        raise ConfigError(
            f"{SAMPLERS.describe(kind)}: its first step has {units} units, but must have from 1 to "
            f"{max_units} (its units_per_step)"
        )
    has_values = graph.topology.has_edge_values or graph.topology.edge_types is not None
    if has_values and not type(config.sampler).__module__.startswith("hyrt."):
        _check_edge_values_of_blocks(kind, graph, sampler)
    with SAMPLERS.wrap_errors(kind, "steps_per_epoch"):
        steps = sampler.steps_per_epoch()
    if steps < 1:
        raise ConfigError(f"{SAMPLERS.describe(kind)}: steps_per_epoch must be at least 1, got {steps}")
    return sampler


def _check_edge_values_of_blocks(kind: str, graph: Graph, sampler: Sampler) -> None:
    """Raise ConfigError if a third-party sampler's blocks omit the edge values of the graph."""
    topology = graph.topology
    with SAMPLERS.wrap_errors(kind, "sample"), Workers(1, "hyrt.sample") as workers:
        batch = sampler.sample(0, sampler.units(0)[:1], workers, in_place=False)
    for name, values in (
        ("weights", topology.edge_weights),
        ("features", topology.edge_features),
        ("types", topology.edge_types),
    ):
        if values is not None and any(getattr(block, f"edge_{name}") is None for block in batch.blocks):
            raise ConfigError(
                f"{SAMPLERS.describe(kind)}: its blocks have no edge {name}, but {graph.name} does: set "
                f"Block.edge_{name} as described in docs/edges.md, or choose another sampler.kind"
            )
    batch.release()


def _check_no_weights_in_chunks(config: Config, graph: Graph, model: torch.nn.Module) -> None:
    """Raise ConfigError if the graph has edge weights and the model's kernels on a device add up chunks."""
    requests = config.training_requests
    in_chunks = config.fullgraph.uses_chunks or len(requests) > 1
    # Only the CPU can keep the matrices of a step in a file without dividing the graph into chunks.
    in_chunks |= config.fullgraph.host_memory is not None and requests[0].name.partition(":")[0] != "cpu"
    if graph.topology.edge_weights is None or not (config.sampler.is_full_graph and in_chunks):
        return
    if isinstance(model, GNN) and not needs_loops(model):
        raise ConfigError(
            f"{graph.name} has edge weights (key 'edge_weight'), which devices that train "
            f"{config.model.kind} in chunks do not support: train on one device, and remove "
            "fullgraph.chunks, fullgraph.device_memory and, except on cpu, fullgraph.host_memory"
        )


class PreparedRun:
    """Model, objective and sampler of a run, each created once on first use.

    `config` needs neither devices nor a policy. `module` is a torch module of the caller, by default the
    configured model. Raises DataError if no vertex has a label, or a class has no vertex although a higher
    class has one.
    """

    def __init__(self, config: Config, graph: Graph, module: torch.nn.Module | None = None) -> None:
        if graph.links is None:
            if not graph.num_outputs:
                raise DataError(
                    f"{graph.name}: no vertex has a label, so there are no classes to learn: add labels, "
                    "or set train.objective=links to predict links"
                )
            check_all_classes(graph.name, graph.labels)
        self._data = graph
        self.is_custom_module = module is not None
        self._config = config
        self._module = module

    @cached_property
    def graph(self) -> Graph:
        """Graph with the edges that the model reads; errors are as for `drop_replaced_loops`."""
        return self.select_edges(self._data)

    def select_edges(self, graph: Graph) -> Graph:
        """Return a graph of the same data with only the edges that the model reads."""
        # The model is needed here only if the data has self-loops.
        return drop_replaced_loops(graph, self.model) if graph.topology.num_self_loops else graph

    @cached_property
    def model(self) -> torch.nn.Module:
        """Model of the run; errors are as for `build_model`, `check_types` and `check_edge_values`."""
        decoder = self._config.links.decoder
        if self.is_custom_module and self._data.links is not None and decoder in LINK_HEADS:
            raise ConfigError(
                f"links.decoder={decoder} has trainable weights, which are supported only for hyrt's own "
                "models: set links.decoder=dot, and return the embeddings from your module"
            )
        if self._module is not None:
            check_forward_signature(self._module)
            check_run(self._config, self._data, self._module)
        model = build_model(self._config, self._data) if self._module is None else self._module
        check_types(model, self._data)
        check_edge_values(model, self._data, sampler_uses_weights=self._config.sampler.reads_edge_weights)
        _check_no_weights_in_chunks(self._config, self._data, model)
        return model

    @cached_property
    def objective(self) -> Objective:
        """Training objective; errors are as for `fitted_objective`."""
        return fitted_objective(self._config, self._data, self.targets)

    @cached_property
    def targets(self) -> np.ndarray:
        """Training vertices [n], or link indices."""
        if self._data.links is not None:
            return np.arange(len(self._data.links.split.train))
        return self._data.split("train", self._config.data.split)

    @cached_property
    def sampler(self) -> Sampler:
        """Sampler of the steps; errors are as for `build_sampler`."""
        return build_sampler(self._config, self.graph, self.targets, self.objective)


def first_split(
    config: Config, names: Sequence[str], expected: RunPrediction | None, num_targets: int
) -> list[int]:
    """Return the units of a step per trainer: as configured, by device shares, as predicted, or equal.

    The sum is the number of units in a full step, at most the number of targets. Raises ValueError if the
    prediction has other trainers or another step size.
    """
    if config.sampler.is_full_graph:
        # The shares of a device group divide its chunk columns, not the units.
        shares: Sequence[float] = [1.0] * len(names)
    elif config.split is not None:
        shares = config.split
    elif expected is not None and not config.has_explicit_split:
        if set(expected.split) != set(names) or sum(expected.split.values()) != config.units_per_step:
            raise ValueError(
                f"the predicted split {dict(expected.split)} does not share {config.units_per_step} "
                f"{config.sampler.unit}s among {names}"
            )
        shares = [expected.split[name] for name in names]
    else:
        shares = [1.0 if request.share is None else request.share for request in config.device_requests]
    return split_by_shares(config.sampler.units_per_step(min(config.data.batch_size, num_targets)), shares)
