"""Python interface: open a graph, train a model on it, and load a trained run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from hyrt.checks import show
from hyrt.config import Config, build_config, to_yaml
from hyrt.errors import ConfigError, RunWarning, user_warner
from hyrt.graph import open_graph
from hyrt.graph.graph import Graph
from hyrt.graph.normalize import Normalize
from hyrt.runtime.files import is_path_too_long
from hyrt.runtime.process_setup import check_compiler, forked_after_threads, mark_forks
from hyrt.runtime.public_function import public_function
from hyrt.section import parse_list, reject_unknown_keys

if TYPE_CHECKING:
    import torch

    from hyrt.config.load import ConfigSections
    from hyrt.report.trained_run import TrainedRun
    from hyrt.telemetry.events import Emit, Event
    from hyrt.training.train import TrainResult


@public_function
def load(source: Any, *, normalize: Normalize = "none") -> Graph:
    """Open a graph.

    Parameters
    ----------
    source
        `.npz` file, folder of `.npy` files, name of a dataset (`cora`, `synthetic:community`,
        `ogbn-products`), PyG `Data` or `HeteroData`, or DGL graph with `feat`, `label` and three masks in
        `ndata`.
    normalize
        Scaling of features: `row` divides each row by its sum, and `length` by its Euclidean length.
        `standard` scales each column to mean 0 and standard deviation 1. `auto` is `length` for bags of
        words, otherwise `none`.

    Raises
    ------
    DataError
        If the data are invalid; the message names the file, the key and the first invalid position.
    """
    check_compiler()
    return open_graph(source, normalize=normalize)


@public_function
def save(
    source: Any,
    destination: str | Path,
    *,
    feature_dtype: str | None = None,
    normalize: Normalize = "none",
    reverse: bool = False,
    order: str | None = None,
    force: bool = False,
) -> None:
    """Write a graph to a file or a folder atomically, as `hyrt data convert` does.

    Parameters
    ----------
    source
        Source as for `load`, such as a PyG `HeteroData`.
    destination
        Path of a `.npz` file; with any other suffix, the path of a folder.
    feature_dtype
        Format of dense features, such as `float16` or `int8`; unchanged by default.
    normalize
        Scaling of features, as for `load`.
    reverse
        Whether to add a reverse relation, named `rev_...`, for each relation of a heterogeneous graph.
    order
        New order of the vertices, such as `degree`; unchanged by default.
    force
        Whether to replace an existing destination.

    Raises
    ------
    ConfigError
        If an argument has the wrong type.
    DataError
        If the input is invalid, or the destination exists or cannot be written.
    """
    check_compiler()
    from hyrt.graph.formats.convert import Conversion, convert

    if isinstance(source, str | Path) and str(source):
        _check_path("source", source, "pass a graph, the path of a dataset, or a name such as synthetic:tiny")
    _check_path("destination", destination, "pass the path of a .npz file or a folder")
    for name, value in (("feature_dtype", feature_dtype), ("normalize", normalize), ("order", order)):
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{name} must be a string, got {show(value)}: see hyrt data convert --help")
    _check_flags(reverse=reverse, force=force)
    convert(
        Conversion(
            source,
            Path(destination),
            feature_dtype=feature_dtype,
            normalize=normalize,
            reverse=reverse,
            order=order,
            force=force,
        )
    )


@public_function
def train(
    graph: Graph | str | Path,
    model: str | Mapping[str, Any] | torch.nn.Module = "graphsage",
    *,
    config: Config | None = None,
    emit: Emit | None = None,
    folder: str | Path | None = None,
    full_graph: bool = False,
    **sections: Unpack[ConfigSections],
) -> TrainResult:
    """Train a model on a graph.

    Parameters
    ----------
    graph
        Graph from `load`, or source as for `load`.
    model
        Model kind such as `graphsage` or `gcn`, the `model` section of the settings, or a custom torch module
        that maps (blocks, x) to scores [targets, classes]. x is [num_src, f] float32, with one row per source
        of the first block. The module gets one block per entry of `sampler={"fanout": [...]}`. By default,
        it gets 2 blocks or, if it is from `hyrt.nn.stack` or `hyrt.from_pyg`, one per layer.
    config
        All settings, instead of `sections`.
    emit
        Callback for each event of the run (`hyrt.telemetry.events`). By default, warning events become Python
        warnings of the category `hyrt.errors.RunWarning`.
    folder
        New folder for checkpoints. By default, no checkpoints are written. `loggers` also need a folder.
    full_graph
        Whether each step trains on the full graph, which is short for `sampler={"kind": "full"}`. A custom
        module then gets blocks of all vertices, and returns the scores of all vertices.
    **sections
        Settings by section, such as `train={"epochs": 5}, data={"batch_size": 512}, seed=1`.

    Returns
    -------
    Metrics by split, the trained module, and the run's summary.

    Raises
    ------
    ConfigError
        If a setting is wrong; the message names it.
    """
    if forked_after_threads():
        raise ConfigError(
            "hyrt.train was called in a process that was forked after its parent had "
            "trained, where torch would hang: start it with "
            "multiprocessing.get_context('spawn'), or before the parent trains"
        )
    from hyrt.graph.links.build_split import write_links
    from hyrt.nn.conv_stack import check_depth, num_model_layers
    from hyrt.predict.choose_devices import resolve_auto, share_columns
    from hyrt.predict.predict_platform import resolve_rows
    from hyrt.predict.predict_run import predict_run
    from hyrt.report.loggers.logger import RunLoggers, check_loggers
    from hyrt.telemetry.events import Notice
    from hyrt.telemetry.run_hooks import hooks_from_environment
    from hyrt.training.build_run import build_run
    from hyrt.training.open_graph import LINKS, opened_graph
    from hyrt.training.setup import PreparedRun
    from hyrt.training.train import Training

    check_compiler()
    settings_by_section: dict[str, Any] = dict(sections)
    _check_train_arguments(graph, config, emit, folder, full_graph, settings_by_section)
    module = None
    if full_graph:
        settings_by_section["sampler"] = {**settings_by_section.get("sampler", {}), "kind": "full"}
    if isinstance(model, str):
        settings_by_section["model"] = {"kind": model}
    elif isinstance(model, Mapping):
        settings_by_section["model"] = dict(model)
    elif isinstance(model, type):
        raise ConfigError(f"model={model.__name__} is a class: pass an instance, {model.__name__}(...)")
    elif not callable(getattr(model, "parameters", None)):
        raise ConfigError(
            "model must be a kind such as graphsage, a mapping of model settings, or a torch "
            f"module, got {show(model)}"
        )
    else:
        module = model
        fanout = parse_list(settings_by_section.get("sampler", {}).get("fanout"))
        depth = len(fanout) if isinstance(fanout, Sequence) else num_model_layers(module)
        if depth is not None:
            settings_by_section["model"] = {"layers": depth}
    if config is not None and (
        settings_by_section.keys() - {"model"} or (module is None and model != "graphsage")
    ):
        raise ConfigError("config cannot be combined with settings as keywords: pass only one of them")
    settings = config or build_config(settings_by_section, custom_model=module is not None)
    if settings.loggers:
        if folder is None:
            raise ConfigError("loggers need a folder to store the name of the run: pass folder=...")
        check_loggers(settings.loggers)
    if folder is not None:
        # Settings that cannot be serialized would otherwise fail at the first checkpoint, after an epoch.
        to_yaml(settings)
    _check_torch(custom_model=module is not None)
    if module is not None:
        check_depth(module, settings.model.layers)
    prepared = PreparedRun(settings, opened_graph(settings, graph), module)
    settings, _ = resolve_auto(settings, prepared)
    settings, prepared, _ = resolve_rows(settings, prepared)
    settings, _ = share_columns(settings, prepared)
    checkpoints = None if folder is None else _new_checkpoints(Path(folder))
    if checkpoints is not None and prepared.graph.links is not None:
        links, ids = prepared.graph.links, prepared.graph.vertices.vertex_ids
        write_links(checkpoints.parent / LINKS, links.split, ids)
    handle_event = emit or _forward_warnings(user_warner(RunWarning))
    emit_event = handle_event
    mark_forks()
    with ExitStack() as stack:
        if settings.loggers and folder is not None:
            loggers = RunLoggers.from_config(
                settings, Path(folder), lambda text: handle_event(Notice(kind="warning", text=text))
            )
            emit_event = _fan_out(handle_event, stack.enter_context(loggers).handle)
        training = Training(
            build_run(
                settings,
                prepared.graph,
                prepared=prepared,
                emit=emit_event,
                checkpoints=checkpoints,
                predict=predict_run,
                hooks=hooks_from_environment(),
            )
        )
        return training.run()


def _fan_out(first: Emit, second: Emit) -> Emit:
    def forward(event: Event) -> None:
        first(event)
        second(event)

    return forward


def _check_train_arguments(
    graph: Any, config: Any, emit: Any, folder: Any, full_graph: Any, sections: Mapping[str, Any]
) -> None:
    """Reject arguments of `train` that would be misinterpreted or ignored."""
    for name in ("data", "sampler"):
        if not isinstance(sections.get(name, {}), Mapping):
            build_config({name: sections[name]})
    has_source = config is not None or "source" in sections.get("data", {})
    if graph is None and not has_source:
        raise ConfigError("graph is None: pass a graph from hyrt.load, or a source that hyrt.load can open")
    if graph is not None and "source" in sections.get("data", {}):
        raise ConfigError("data.source is set although a graph is passed: remove data.source")
    if config is not None and not isinstance(config, Config):
        raise ConfigError(f"config must be a hyrt.Config, got {show(config)}")
    if config is not None:
        # `model_copy` of pydantic neither validates values nor rejects unknown keys.
        reject_unknown_keys(config)
        build_config(config.model_dump(warnings=False), custom_model=True)
    if emit is not None and not callable(emit):
        raise ConfigError(f"emit must be a function of one event, got {show(emit)}")
    _check_flags(full_graph=full_graph)
    if folder is not None:
        _check_path("folder", folder, "pass the path of a new folder")


def _check_torch(*, custom_model: bool) -> None:
    """Reject global torch settings that prevent training."""
    import torch

    if torch.is_inference_mode_enabled() or not torch.is_grad_enabled():
        raise ConfigError(
            "hyrt.train is called inside torch.no_grad() or torch.inference_mode(), which "
            "disable gradients: call it outside"
        )
    device, dtype = torch.get_default_device(), torch.get_default_dtype()
    if device.type != "cpu":
        raise ConfigError(
            f"torch.set_default_device({str(device)!r}) would move hyrt's own tensors there: "
            "call torch.set_default_device(None) first, and pass devices=[...] to hyrt.train"
        )
    if dtype != torch.float32 and not custom_model:
        raise ConfigError(
            f"torch.set_default_dtype({dtype}) is set, but hyrt's models are float32: call "
            "torch.set_default_dtype(torch.float32) first"
        )


def _check_flags(**flags: Any) -> None:
    """Reject values other than True and False, because a word such as 'no' would count as True."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be True or False, got {show(value)}")


def _check_path(name: str, value: Any, remedy: str) -> None:
    """Reject values that are not valid paths."""
    if (
        not isinstance(value, str | Path)
        or not str(value)
        or "\0" in str(value)
        or is_path_too_long(Path(value))
    ):
        raise ConfigError(f"{name}={show(value)}: {remedy}")


def _forward_warnings(warn: Callable[[str], None]) -> Emit:
    """Return an event callback that ignores all events except warnings."""
    from hyrt.telemetry.events import Notice

    def handle(event: Event) -> None:
        if isinstance(event, Notice) and event.kind == "warning":
            warn(event.text)

    return handle


def _new_checkpoints(folder: Path) -> Path:
    """Create the folder for checkpoints before training starts."""
    from hyrt.errors import CheckpointWriteError
    from hyrt.training.checkpoint import has_checkpoint

    checkpoints = folder / "checkpoints"
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointWriteError(
            f"{checkpoints} cannot be created ({error.strerror or error}): choose another folder"
        ) from error
    if has_checkpoint(checkpoints):
        # `load_run` would otherwise choose between the two runs by their number of steps.
        raise ConfigError(
            f"{folder} contains the checkpoints of another run: choose a new folder, or delete it"
        )
    return checkpoints


@public_function
def load_run(
    folder: str | Path,
    *,
    graph: Graph | str | Path | None = None,
    model: torch.nn.Module | None = None,
    checkpoint: str = "best",
) -> TrainedRun:
    """Load a trained run.

    Parameters
    ----------
    folder
        Folder of a run of `hyrt run`, or the argument `folder` of `train`.
    graph
        Graph from `load`, or source as for `load`. It may differ from the training data, whose form it
        is converted to. The default is the dataset of the run's settings, which `train` does not store.
    model
        Module to load the weights into, if the run trained a custom module. The default is the model of the
        settings.
    checkpoint
        `best` for the weights of the best evaluation (the newest weights if there was none), `newest`, or the
        path of a checkpoint.

    Returns
    -------
    Run with the `model` in evaluation mode, the `config`, the `metrics` by split, the `graph`, and the
    `schema` with all other fitted data. Its method `scores()` applies the model.

    Raises
    ------
    CheckpointError
        If the folder is not a run or lacks the weights, or if the weights do not fit the graph or the module.
    ConfigError
        If `graph` is missing and the run did not store its dataset.
    DataError
        If the graph lacks data that the model reads; the message names the differences.
    """
    from hyrt.report.trained_run import open_trained_run

    _check_path("folder", folder, "pass the path of a run folder, such as runs/<name>")
    _check_path("checkpoint", checkpoint, "use best, newest or the path of a checkpoint file")
    if isinstance(model, type):
        raise ConfigError(f"model={model.__name__} is a class: pass an instance, {model.__name__}(...)")
    if model is not None and not callable(getattr(model, "load_state_dict", None)):
        raise ConfigError(f"model must be the torch module that was trained, got {show(model)}")

    warn = user_warner(RunWarning)
    return open_trained_run(Path(folder), [], checkpoint, warn, graph=graph, module=model)
