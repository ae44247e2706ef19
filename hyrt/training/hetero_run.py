"""Checks of settings for heterogeneous graphs."""

from __future__ import annotations

import torch

from hyrt.config import Config
from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.nn.hetero.hetero_gnn import HeteroGNN
from hyrt.nn.models.model_kind import MODELS, find_model, supports_edge_types
from hyrt.runtime.entry_points import EntryPointGroup

# Samplers that support relations.
_SAMPLERS = ("neighbor", "full")


def check_kind(config: Config, graph: Graph) -> None:
    """Check that the configured model and sampler support the graph's types, or that it has only one type.

    Raises ConfigError with setting and remedy if they do not.
    """
    name, kind = config.model.kind, find_model(config.model.kind)
    if graph.types is None:
        if kind.hetero:
            raise ConfigError(
                f"model.kind={name} is for typed graphs, and {graph.name} has vertices of one type: choose "
                "another kind, such as graphsage, or give a typed graph (docs/heterogeneous.md)"
            )
        return
    if not kind.hetero and not supports_edge_types(name):
        raise ConfigError(
            f"{graph.name} has {len(graph.types.vertex_types)} types of vertices, which model.kind={name} "
            f"does not tell apart: choose {', '.join(_hetero_kinds(MODELS))}"
        )
    check_hetero_sampler(config, graph)


def check_hetero_sampler(config: Config, graph: Graph) -> None:
    """Check that the sampler supports relations, and that feature caches are disabled.

    Raises ConfigError with setting and remedy if not.
    """
    if graph.types is None:
        return
    if config.sampler.kind not in _SAMPLERS:
        raise ConfigError(
            f"sampler.kind={config.sampler.kind} does not know the relations of {graph.name}: give "
            f"{' or '.join(_SAMPLERS)}"
        )
    if config.data.cache is not None:
        raise ConfigError(
            f"data.cache={config.data.cache}: devices keep rows of one type alone: omit it with {graph.name}"
        )


def _hetero_kinds(models: EntryPointGroup) -> list[str]:
    """Return the model kinds for heterogeneous graphs and those that use edge types."""
    names = sorted(models.entries_by_name())
    hetero = [name for name in names if find_model(name).hetero]
    return [*hetero, *(name for name in names if name not in hetero and supports_edge_types(name))]


def check_user_module(module: torch.nn.Module, graph: Graph) -> None:
    """Reject, with a ConfigError, a user-defined module without maps for the types of a graph."""
    if graph.types is not None and not isinstance(module, HeteroGNN):
        raise ConfigError(
            f"{type(module).__name__} cannot be trained on {graph.name}, which has types of vertices: "
            "give a kind such as model='rgcn', or layers of your own in hyrt.nn.hetero_stack "
            "(docs/heterogeneous.md)"
        )
    if graph.types is None and isinstance(module, HeteroGNN):
        raise ConfigError(
            f"{type(module).__name__} is for typed graphs, and {graph.name} has one type: use hyrt.nn.stack"
        )
