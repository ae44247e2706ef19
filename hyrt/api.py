"""The Python interface: open a graph, train a model on it, load what a run has learned."""

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
from hyrt.machine.kernels.kernel_cache import check_compiler
from hyrt.machine.path_length import is_too_long
from hyrt.machine.this_process.forks import mark_forks, was_forked_late
from hyrt.machine.this_process.public_function import public_function
from hyrt.section import as_list, check_known

if TYPE_CHECKING:
    import torch

    from hyrt.config.section_types import Sections
    from hyrt.observe.events import Emit, Event
    from hyrt.report.records.trained_run import TrainedRun
    from hyrt.training.train import TrainResult


@public_function
def load(source: Any, *, normalize: Normalize = "none") -> Graph:
    """Open a graph.

    Parameters
    ----------
    source
        A .npz file, a folder of .npy files, a name (`cora`, `synthetic:community`, `ogbn-products`), a PyG
        `Data` or `HeteroData`, or a DGL graph with `feat`, `label` and three masks in `ndata`.
    normalize
        Scale features: `row` divides each row by its sum, `length` by its Euclidean length; `standard` gives
        each column mean 0 and deviation 1; `auto` is `length` for bags of words, and `none` for others.

    Raises
    ------
    DataError
        Naming file, key and first bad position.
    """
    check_compiler()
    return open_graph(source, normalize=normalize)


@public_function
def save(
    source: Any,
    destination: str | Path,
    *,
    rows: str | None = None,
    normalize: Normalize = "none",
    reverse: bool = False,
    order: str | None = None,
    force: bool = False,
) -> None:
    """Write a graph to a file or a folder, as `hyrt data convert` does: complete or not at all.

    Parameters
    ----------
    source
        What `load` takes, such as a PyG `HeteroData`.
    destination
        A `.npz` file, or a folder where it does not end so.
    rows
        The format of dense features, such as `float16` or `int8`; by default the one they have.
    normalize
        How features are scaled, as for `load`.
    reverse
        Relations of a typed graph get others that go back, named `rev_` and their names.
    order
        A new order of the vertices, such as `degree`; by default they keep theirs.
    force
        Replace what is at the destination.

    Raises
    ------
    ConfigError
        If an argument is of no kind that it may have.
    DataError
        For bad input, and for a destination that exists or cannot be written.
    """
    check_compiler()
    from hyrt.graph.formats.convert import Conversion, convert

    if isinstance(source, str | Path) and str(source):
        _check_path("source", source, "give a graph, the path of one, or a name such as synthetic:tiny")
    _check_path("destination", destination, "give the path of a .npz file or a folder")
    for name, given in (("rows", rows), ("normalize", normalize), ("order", order)):
        if given is not None and not isinstance(given, str):
            raise ConfigError(f"{name}={show(given)}: give a word, as hyrt data convert --help lists them")
    _check_flags(reverse=reverse, force=force)
    convert(
        Conversion(
            source,
            Path(destination),
            rows=rows,
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
    **sections: Unpack[Sections],
) -> TrainResult:
    """Train a model on a graph.

    Parameters
    ----------
    graph
        A graph from `load`, or a source as `load` takes it.
    model
        A kind such as `graphsage` or `gcn`, the `model` section of the settings, or a torch module of your
        own that maps (blocks, x) to [targets, classes] scores: x is [num_src, f] float32, one row a
        source of the first block. A module gets as many blocks as `sampler={"fanout": [...]}` has entries (2
        by default, or as many as it has layers if it is of `hyrt.nn.stack` or `hyrt.from_pyg`).
    config
        All settings, in place of `sections`.
    emit
        Called with each event of the run (`hyrt.observe.events`). Without it, the warnings among them are
        Python's, of the category `hyrt.errors.RunWarning`.
    folder
        Where checkpoints go, which has none yet; none are written without it. `loggers` need it, too.
    full_graph
        Train on the whole graph in each step; short for `sampler={"kind": "full"}`. A module of your own gets
        blocks of all vertices, and returns scores of all.
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
    if was_forked_late():
        raise ConfigError(
            "hyrt.train is called in a process that was forked after its parent had trained, where torch "
            "would hang: start such processes by multiprocessing.get_context('spawn'), or before the parent "
            "trains"
        )
    from hyrt.graph.links.link_file import write_links
    from hyrt.nn.own_modules.depth import check_depth, depth_of
    from hyrt.observe.events import Notice
    from hyrt.observe.wanted_hooks import hooks_of_environment
    from hyrt.predict.choose_devices import resolve_auto
    from hyrt.predict.choose_rows import resolve_rows
    from hyrt.predict.chunks.column_shares import share_columns
    from hyrt.predict.this_run import predict_run
    from hyrt.report.loggers.registry import check_loggers
    from hyrt.report.loggers.run_loggers import RunLoggers
    from hyrt.training.compose import compose_run
    from hyrt.training.given.link_graph import LINKS
    from hyrt.training.given.opened_graph import opened_graph
    from hyrt.training.setup import PreparedRun
    from hyrt.training.train import Training

    check_compiler()
    given: dict[str, Any] = dict(sections)
    _check_given(graph, config, emit, folder, full_graph, given)
    module = None
    if full_graph:
        given["sampler"] = {**given.get("sampler", {}), "kind": "full"}
    if isinstance(model, str):
        given["model"] = {"kind": model}
    elif isinstance(model, Mapping):
        given["model"] = dict(model)
    elif isinstance(model, type):
        raise ConfigError(f"model={model.__name__} is a class: make the module first, {model.__name__}(...)")
    elif not callable(getattr(model, "parameters", None)):
        raise ConfigError(
            f"model={show(model)}: give a kind such as graphsage, the settings of one, or a torch module"
        )
    else:
        module = model
        fanout = as_list(given.get("sampler", {}).get("fanout"))
        depth = len(fanout) if isinstance(fanout, Sequence) else depth_of(module)
        if depth is not None:
            given["model"] = {"layers": depth}
    if config is not None and (given.keys() - {"model"} or (module is None and model != "graphsage")):
        raise ConfigError("give either a config or sections as keywords, not both")
    settings = config or build_config(given, own_model=module is not None)
    if settings.loggers:
        if folder is None:
            raise ConfigError("loggers keep the name of the run in its folder: give folder=...")
        check_loggers(settings.loggers)
    if folder is not None:
        # Else the first checkpoint, after an epoch, would be what refuses them.
        to_yaml(settings)
    _check_torch(own_model=module is not None)
    if module is not None:
        check_depth(module, settings.model.layers)
    prepared = PreparedRun(settings, opened_graph(settings, graph), module)
    settings, _ = resolve_auto(settings, prepared)
    settings, prepared, _ = resolve_rows(settings, prepared)
    settings, _ = share_columns(settings, prepared)
    checkpoints = None if folder is None else _new_checkpoints(Path(folder))
    if checkpoints is not None and prepared.graph.links is not None:
        write_links(checkpoints.parent / LINKS, prepared.graph.links.split)
    hear = emit or _hears_warnings(user_warner(RunWarning))
    tell = hear
    mark_forks()
    with ExitStack() as stack:
        if settings.loggers and folder is not None:
            loggers = RunLoggers.of(
                settings, Path(folder), lambda text: hear(Notice(kind="warning", text=text))
            )
            tell = _told_both(hear, stack.enter_context(loggers).handle)
        training = Training(
            compose_run(
                settings,
                prepared.graph,
                prepared=prepared,
                emit=tell,
                checkpoints=checkpoints,
                predict=predict_run,
                hooks=hooks_of_environment(),
            )
        )
        return training.run()


def _told_both(first: Emit, second: Emit) -> Emit:
    def tell(event: Event) -> None:
        first(event)
        second(event)

    return tell


def _check_given(
    graph: Any, config: Any, emit: Any, folder: Any, full_graph: Any, sections: Mapping[str, Any]
) -> None:
    """Refuse arguments of `train` that would be taken for something else, or for nothing."""
    for name in ("data", "sampler"):
        if not isinstance(sections.get(name, {}), Mapping):
            build_config({name: sections[name]})
    has_source = config is not None or "source" in sections.get("data", {})
    if graph is None and not has_source:
        raise ConfigError("graph=None: give a graph from hyrt.load, or something that hyrt.load can open")
    if graph is not None and "source" in sections.get("data", {}):
        raise ConfigError("the setting data.source is given as well as a graph: omit it")
    if config is not None and not isinstance(config, Config):
        raise ConfigError(f"config={show(config)}: give a hyrt.Config, or settings by section as keywords")
    if config is not None:
        # What `model_copy` was given, pydantic takes as it is, and leaves out what it does not know.
        check_known(config)
        build_config(config.model_dump(warnings=False), own_model=True)
    if emit is not None and not callable(emit):
        raise ConfigError(f"emit={show(emit)}: give a function that takes an event, or omit it")
    _check_flags(full_graph=full_graph)
    if folder is not None:
        _check_path("folder", folder, "give the path of a new folder, or omit it")


def _check_torch(*, own_model: bool) -> None:
    """Refuse what was set for all of torch, and keeps a model of hyrt's from being trained."""
    import torch

    if torch.is_inference_mode_enabled() or not torch.is_grad_enabled():
        raise ConfigError(
            "hyrt.train is called inside torch.no_grad() or torch.inference_mode(), where nothing can be "
            "trained: call it outside"
        )
    device, dtype = torch.get_default_device(), torch.get_default_dtype()
    if device.type != "cpu":
        raise ConfigError(
            f"torch.set_default_device({str(device)!r}) would move hyrt's own tensors there: call "
            "torch.set_default_device(None) first, and give devices=[...] to hyrt.train"
        )
    if dtype != torch.float32 and not own_model:
        raise ConfigError(
            f"torch.set_default_dtype({dtype}) is set, but hyrt's models are float32: call "
            "torch.set_default_dtype(torch.float32) first"
        )


def _check_flags(**given: Any) -> None:
    """Refuse what is neither True nor False: the word 'no' would count as True."""
    for name, value in given.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{name}={show(value)}: give True or False")


def _check_path(name: str, given: Any, wanted: str) -> None:
    """Refuse what is no path."""
    if not isinstance(given, str | Path) or not str(given) or "\0" in str(given) or is_too_long(Path(given)):
        raise ConfigError(f"{name}={show(given)}: {wanted}")


def _hears_warnings(warn: Callable[[str], None]) -> Emit:
    """What tells of the warnings among a run's events only."""
    from hyrt.observe.events import Notice

    def hear(event: Event) -> None:
        if isinstance(event, Notice) and event.kind == "warning":
            warn(event.text)

    return hear


def _new_checkpoints(folder: Path) -> Path:
    """The folder for the checkpoints of a training, made before it starts."""
    from hyrt.errors import CheckpointNotWritten
    from hyrt.training.checkpoint import has_checkpoint

    checkpoints = folder / "checkpoints"
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointNotWritten(
            f"{checkpoints} cannot be made: {error.strerror or error}: give another folder"
        ) from error
    if has_checkpoint(checkpoints):
        # Else `load_run` would find whichever of the two has made more steps.
        raise ConfigError(f"{folder} has the checkpoints of another run: give a new folder, or delete it")
    return checkpoints


@public_function
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
        The graph, from `load`, or what `load` takes; it may be other data, which get the form that the run
        was trained on. By default the dataset of the run's settings, which `train` does not keep.
    model
        The module of your own that was trained, which takes the weights. By default the settings' model.
    checkpoint
        `best`: the weights of the best evaluation (the newest where there was none); `newest`; or the file of
        a checkpoint.

    Returns
    -------
    `model` in evaluation mode, `config` and `metrics` by split, the `graph`, and the `schema`, which has what
    was fitted besides the weights. `scores()` applies the model.

    Raises
    ------
    CheckpointError
        If the folder is not that of a run, has no such weights, or they do not fit the graph or the module.
    ConfigError
        If the graph has to be given.
    DataError
        If the graph lacks what the model reads, naming the differences.
    """
    from hyrt.report.records.trained_run import open_trained

    _check_path("folder", folder, "give the path of a run's folder, such as runs/<name>")
    _check_path("checkpoint", checkpoint, "give best, newest or the file of a checkpoint")
    if isinstance(model, type):
        raise ConfigError(f"model={model.__name__} is a class: make the module first, {model.__name__}(...)")
    if model is not None and not callable(getattr(model, "load_state_dict", None)):
        raise ConfigError(f"model={show(model)}: give the torch module that was trained, or omit it")

    warn = user_warner(RunWarning)
    return open_trained(Path(folder), [], checkpoint, warn, graph=graph, module=model)
