"""Compatibility of run components with features, and the error for an unsupported combination.

A component is a part of the settings that a user can replace or remove: a kind of sampler or model, a device,
a strategy, or a single setting. A feature is a property of the data or of the settings. Components declare
the features that they support or refuse. `tools/write_configuration_docs.py` prints the declarations, and
`tests/unit/config/test_compatibility_tables.py` tests every cell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from hyrt.device.capabilities import KeepsHostBudget, RunsChunks, SharesColumns
from hyrt.errors import ConfigError, HyrtError, UnsupportedModelError, join_names
from hyrt.nn.models.model_kind import MODELS, find_model, supports_edge_types
from hyrt.runtime.entry_points import EntryPointGroup
from hyrt.sampling.sampler_settings import SAMPLERS, SamplerSettings

if TYPE_CHECKING:
    from hyrt.config.settings import Config
    from hyrt.device import Device, DeviceInfo
    from hyrt.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class Feature:
    """Property of the data or of the settings that some components do not support."""

    title: str
    """Name of the feature in tables and messages."""
    remedy: str = ""
    """Remedy that removes the feature from a run; empty for a property of the data."""


FEATURES: Mapping[str, Feature] = MappingProxyType(
    {
        "hetero": Feature("heterogeneous graphs"),
        "homogeneous": Feature("homogeneous graphs"),
        "edge_types": Feature("edge types"),
        "edge_weights": Feature("edge weights"),
        "links": Feature("train.objective=links"),
        "full_graph": Feature("--full-graph", "remove --full-graph"),
        "hetero_full_graph": Feature("--full-graph on heterogeneous graphs", "remove --full-graph"),
        "shared_full_graph": Feature("full graphs that several devices or ranks share"),
        "accelerated_full_graph": Feature(
            "--full-graph on other devices than one cpu", "set devices=cpu, or remove --full-graph"
        ),
        "full_graph_ranks": Feature(
            "--full-graph on several ranks", "remove --full-graph, or run without torchrun"
        ),
        "chunks": Feature("full graphs in chunks", "remove these settings"),
        "host_memory": Feature("fullgraph.host_memory", "remove fullgraph.host_memory"),
        "subgraph_units": Feature("samplers of subgraphs"),
        "step_sampling": Feature("samplers of whole steps"),
        "device_sampling": Feature("sampler.on_device=true", "remove sampler.on_device"),
        "feature_cache": Feature("data.cache", "remove data.cache"),
        "ranks": Feature("several ranks", "run without torchrun"),
        "split_edges": Feature("parts with split edges", "partition with --topology replicated"),
        "strategy": Feature("distributed.strategy", "remove distributed.strategy"),
        "rank_shares": Feature("distributed.shares", "remove distributed.shares"),
        "remote_cache": Feature("distributed.cache", "remove distributed.cache"),
        "comm_dtype": Feature("distributed.comm_dtype", "remove distributed.comm_dtype"),
        "shared_memory": Feature(
            "distributed.shared_memory_features", "remove distributed.shared_memory_features"
        ),
        "accelerated_ranks": Feature("other devices than one cpu per rank", "set devices=cpu"),
    }
)
"""Features by name, in the order of the table."""

SAMPLER_FEATURES = ("hetero", "links", "split_edges")
"""Features that a kind of sampler supports only if it declares them in `SamplerSettings.supports`."""
_DISTRIBUTED_SETTINGS = {
    "strategy": "strategy",
    "shares": "rank_shares",
    "cache": "remote_cache",
    "comm_dtype": "comm_dtype",
    "shared_memory_features": "shared_memory",
}
SETTING_REFUSALS: Mapping[str, Collection[str]] = {
    "data.cache": ("hetero", "links", "full_graph", "ranks"),
    "data.feature_dtype": ("hetero", "ranks"),
    "distributed.cache": ("links", "split_edges"),
    "train.objective=links": ("accelerated_full_graph", "full_graph_ranks", "split_edges"),
}
"""Features that single settings refuse. A setting can be a component as well as a feature."""


@dataclass(frozen=True, slots=True)
class Component:
    """Part of a run, with the features that it refuses."""

    name: str
    """Name of the component as in the settings, such as `sampler.kind=saint`."""
    refuses: Collection[str]
    """Names of the features that the component refuses."""
    remedy: Callable[[str, Collection[str]], str] = lambda refused, features: ""
    """Function that returns how to do without the component, given the refused feature and all features."""
    undeclared: str = ""
    """Place where a third party can declare features, if the component declares none."""
    error: type[HyrtError] = ConfigError


def find_conflict(components: Iterable[Component], features: Mapping[str, str]) -> HyrtError | None:
    """Return the error for the first component that refuses a feature; None if there is none.

    `features` maps the names of the run's features to descriptions.
    """
    for component in components:
        for name in FEATURES:
            if name in features and name in component.refuses:
                return _describe_conflict(component, name, features)
    return None


def check_compatibility(components: Iterable[Component], features: Mapping[str, str]) -> None:
    """Raise the error of `find_conflict`, if there is one: ConfigError, or the error of the component."""
    if error := find_conflict(components, features):
        raise error


def _describe_conflict(component: Component, name: str, features: Mapping[str, str]) -> HyrtError:
    remedies = [component.remedy(name, features), FEATURES[name].remedy]
    if component.undeclared:
        remedies.append(f"add {name!r} to {component.undeclared}")
    remedy = ", or ".join(filter(None, dict.fromkeys(remedies)))
    verb = "declare that it supports" if component.undeclared else "support"
    return component.error(f"{component.name} does not {verb} {features[name]}: {remedy}")


def list_features(config: Config, graph: Graph | None = None) -> dict[str, str]:
    """Return the features of a run in one process, as descriptions by name.

    If `graph` is None, only the features that follow from the settings are included.
    """
    sampler, settings = config.sampler, config.distributed
    kind = f"sampler.kind={sampler.kind}"
    is_one_cpu = [request.name.partition(":")[0] for request in config.device_requests] == ["cpu"]
    found = {
        "links": config.train.predicts_links and FEATURES["links"].title,
        "full_graph": sampler.is_full_graph and f"--full-graph ({kind})",
        "accelerated_full_graph": sampler.is_full_graph
        and not is_one_cpu
        and f"--full-graph on {join_names(config.devices)}",
        "chunks": config.fullgraph.uses_chunks and join_names(config.fullgraph.chunk_settings),
        "host_memory": config.fullgraph.host_memory is not None and FEATURES["host_memory"].title,
        "subgraph_units": sampler.unit != "target" and not sampler.is_full_graph and kind,
        "step_sampling": sampler.draws_whole_steps and kind,
        "device_sampling": sampler.draws_on_device and FEATURES["device_sampling"].title,
        "feature_cache": config.data.cache is not None and f"data.cache={config.data.cache}",
        "accelerated_ranks": not is_one_cpu and f"devices={','.join(config.devices)}",
    }
    for key, name in _DISTRIBUTED_SETTINGS.items():
        value = getattr(settings, key)
        is_default = value == type(settings).model_fields[key].default
        found[name] = not is_default and f"distributed.{key}={value}"
    if graph is not None:
        found |= list_graph_features(graph.name, is_hetero=graph.types is not None)
        topology = graph.topology
        found["edge_types"] = (
            graph.types is None and topology.edge_types is not None and f"the edge types of {graph.name}"
        )
        found["edge_weights"] = topology.edge_weights is not None and f"the edge weights of {graph.name}"
        if graph.types is not None and sampler.is_full_graph:
            found["hetero_full_graph"] = f"--full-graph on heterogeneous graphs, such as {graph.name}"
    return {name: text for name, text in found.items() if text}


def list_graph_features(name: str, *, is_hetero: bool) -> dict[str, str]:
    """Return the feature of a dataset that distinguishes heterogeneous and homogeneous graphs."""
    kind = "hetero" if is_hetero else "homogeneous"
    return {kind: f"{FEATURES[kind].title}, such as {name}"}


def list_components(config: Config, *, has_configured_model: bool = True) -> Iterator[Component]:
    """Yield the components of a run in one process, without its devices."""
    yield sampler_component(config.sampler)
    for setting, refused in config.sampler.restrictions().items():
        yield setting_component(setting, refused)
    if has_configured_model:
        yield model_component(config.model.kind)
    if config.data.cache is not None:
        yield setting_component(f"data.cache={config.data.cache}")
    if config.data.feature_dtype not in ("stored", "auto"):
        yield setting_component(f"data.feature_dtype={config.data.feature_dtype}")
    if config.distributed.cache is not None:
        yield setting_component(f"distributed.cache={config.distributed.cache}")
    if config.train.predicts_links:
        yield Component("train.objective=links", SETTING_REFUSALS["train.objective=links"])


def setting_component(setting: str, refused: Collection[str] = ()) -> Component:
    """Return the component of a single setting, such as `data.cache=0.5`, which can be removed.

    By default, the setting refuses the features in `SETTING_REFUSALS`.
    """
    name = setting.partition("=")[0]
    return Component(setting, refused or SETTING_REFUSALS[name], lambda refused, features: f"remove {name}")


def distributed_settings_refusal(mode: str) -> Component:
    """Return the component of a distributed mode that exchanges no mini-batches, such as `--full-graph`."""
    return Component(mode, _DISTRIBUTED_SETTINGS.values())


def sampler_component(sampler: SamplerSettings) -> Component:
    """Return the component of a sampler; it refuses the `SAMPLER_FEATURES` that it does not declare."""
    section, kind = type(sampler), sampler.kind
    is_declared = section.supports is not SamplerSettings.supports or section.__module__.startswith("hyrt.")

    def suggest_kinds(refused: str, features: Collection[str]) -> str:
        others = [name for name in _loadable(SAMPLERS) if name != kind and not _refuses(name, features)]
        return f"set sampler.kind to {join_names(others, 'or')}" if others else ""

    def _refuses(name: str, features: Collection[str]) -> bool:
        supported = SAMPLERS.load_class(name, SamplerSettings).supports  # type: ignore[type-abstract]
        return not supported.issuperset(set(features) & set(SAMPLER_FEATURES))

    return Component(
        f"sampler.kind={kind}",
        set(SAMPLER_FEATURES) - section.supports,
        suggest_kinds,
        undeclared="" if is_declared else f"`supports` of {section.__name__}",
    )


def model_component(kind: str) -> Component:
    """Return the component of a configured model kind."""

    def suggest_kinds(refused: str, features: Collection[str]) -> str:
        others = [name for name in _loadable(MODELS) if not set(features) & _refused_graphs(name)]
        return f"set model.kind to {join_names(others, 'or')}"

    return Component(f"model.kind={kind}", _refused_graphs(kind), suggest_kinds)


def _refused_graphs(kind: str) -> set[str]:
    if find_model(kind).hetero:
        return {"homogeneous"}
    return set() if supports_edge_types(kind) else {"hetero"}


def _loadable(group: EntryPointGroup) -> Iterator[str]:
    """Yield the kinds of a group that can be loaded; a broken kind is reported when it is used."""
    for name in sorted(group.entries_by_name()):
        with suppress(HyrtError):
            group.load_class(name, object)
            yield name


def device_component(backend: type[Device], info: DeviceInfo) -> Component:
    """Return the component of a device of a run, from its description and its capabilities."""
    refused = {
        "hetero": "hetero" not in info.forms,  # A group of devices for chunks has no such form either.
        "full_graph": not info.whole_graphs,
        "hetero_full_graph": "in_place" not in info.forms,
        "shared_full_graph": not issubclass(backend, SharesColumns),
        "chunks": not issubclass(backend, RunsChunks),
        "host_memory": not issubclass(backend, KeepsHostBudget),
    }

    def suggest_devices(name: str, features: Collection[str]) -> str:
        if name in ("chunks", "shared_full_graph"):
            return "use cuda or opencl"
        without = " without chunks" if {"chunks", "host_memory"} & set(features) else ""
        return f"use cpu{without}"

    return Component(
        info.name,
        [name for name, is_refused in refused.items() if is_refused],
        suggest_devices,
        error=UnsupportedModelError,
    )
