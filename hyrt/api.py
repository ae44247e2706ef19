"""The Python interface: open a graph, train a model on it, load what a run has learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyrt.config import Config, build_config
from hyrt.errors import ConfigError
from hyrt.graph import open_graph
from hyrt.graph.graph import Graph
from hyrt.graph.normalize import Normalize
from hyrt.section import as_list

if TYPE_CHECKING:
    import torch

    from hyrt.observe.events import Emit
    from hyrt.report.records.trained_run import TrainedRun
    from hyrt.training.train import TrainResult


def load(source: Any, *, normalize: Normalize = "none") -> Graph:
    """Open a graph.

    Parameters
    ----------
    source
        A .npz file, a folder of .npy files, a name (`synthetic:community`, `ogbn-products`), or a PyG `Data`.
    normalize
        Scale features: `row` divides each row by its sum, `length` by its Euclidean length; `standard` gives
        each column mean 0 and deviation 1; `auto` is `length` for bags of words, and `none` for others.

    Raises
    ------
    DataError
        Naming file, key and first bad position.
    """
    return open_graph(source, normalize=normalize)


def train(
    graph: Graph | str | Path,
    model: str | Mapping[str, Any] | torch.nn.Module = "graphsage",
    *,
    config: Config | None = None,
    emit: Emit | None = None,
    folder: Path | None = None,
    **sections: Any,
) -> TrainResult:
    """Train a model on a graph.

    Parameters
    ----------
    graph
        A graph from `load`, or a source as `load` takes it.
    model
        A kind (`graphsage`, `gcn`, `gin`, `gat`), the `model` section of the settings, or a torch module of
        your own that maps (blocks, x) to [targets, classes] scores: x is [num_src, f] float32, one row a
        source of the first block. A module gets as many blocks as `sampler={"fanout": [...]}` has entries (2
        by default).
    config
        All settings, in place of `sections`.
    emit
        Called with each event of the run (`hyrt.observe.events`).
    folder
        Where checkpoints go; none are written without it.
    **sections
        Settings by section, as in `train={"epochs": 5}, data={"batch_size": 512}, seed=1`.

    Returns
    -------
    Metrics by split, the trained module, and the run's summary.

    Raises
    ------
    ConfigError
        Naming the wrong setting.
    """
    from hyrt.observe.wanted_hooks import hooks_of_environment
    from hyrt.predict.choose_devices import resolve_auto
    from hyrt.predict.this_run import predict_run
    from hyrt.training.compose import compose_run
    from hyrt.training.train import Training

    module = None
    if isinstance(model, str):
        sections["model"] = {"kind": model}
    elif isinstance(model, Mapping):
        sections["model"] = dict(model)
    elif not callable(getattr(model, "parameters", None)):
        raise ConfigError(
            f"model={model!r}: give a kind such as graphsage, the settings of one, or a torch module"
        )
    else:
        module = model
        fanout = as_list(sections.get("sampler", {}).get("fanout"))
        if isinstance(fanout, Sequence):
            sections["model"] = {"layers": len(fanout)}
    if config is not None and (sections.keys() - {"model"} or (module is None and model != "graphsage")):
        raise ConfigError("give either a config or sections as keywords, not both")
    settings = config or build_config(sections, own_model=module is not None)
    opened = load(graph, normalize=settings.data.normalize)
    settings, _ = resolve_auto(settings, opened, module)
    checkpoints = None if folder is None else Path(folder) / "checkpoints"
    training = Training(
        compose_run(
            settings,
            opened,
            model=module,
            emit=emit or (lambda event: None),
            checkpoints=checkpoints,
            predict=predict_run,
            hooks=hooks_of_environment(),
        )
    )
    return training.run()


def load_run(
    folder: str | Path,
    *,
    graph: Graph | str | Path | None = None,
    model: torch.nn.Module | None = None,
    checkpoint: str = "best",
) -> TrainedRun:
    """Load what a run has learned.

    Parameters
    ----------
    folder
        Folder of a run of `hyrt run`, or the `folder` of `train`.
    graph
        The graph, from `load`, or what `load` takes. By default the dataset of the run's settings, which
        `train` does not keep.
    model
        The module of your own that was trained, which takes the weights. By default the settings' model.
    checkpoint
        `best`: the weights of the best evaluation (the newest where there was none); `newest`; or the file of
        a checkpoint.

    Returns
    -------
    `model` in evaluation mode, `config` and `metrics` by split, and the `graph`.

    Raises
    ------
    CheckpointError
        If the folder is not that of a run, has no such weights, or they do not fit the graph or the module.
    ConfigError
        If the graph has to be given.
    """
    import warnings

    from hyrt.config.command_line import option_overrides
    from hyrt.report.records.trained_run import open_trained

    def warn(text: str) -> None:
        warnings.warn(text, stacklevel=3)

    opened = graph if isinstance(graph, Graph) else None
    # One that is not open yet is scaled as the settings say.
    source = None if graph is None or opened is not None else str(graph)
    overrides = option_overrides(data__source=source)
    return open_trained(Path(folder), overrides, checkpoint, warn, graph=opened, module=model)
