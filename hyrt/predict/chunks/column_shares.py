"""Shares of a full graph among several devices, from their measured rates."""

from __future__ import annotations

from hyrt.config import Config
from hyrt.errors import ConfigError
from hyrt.predict.calibrate.store import usable
from hyrt.predict.chunks.chunk_prediction import named_trainers
from hyrt.predict.chunks.chunk_team import PredictedTeam
from hyrt.predict.chunks.chunked_work import ChunkedWork
from hyrt.predict.this_run import devices_of
from hyrt.predict.workload import sampled_workload
from hyrt.training.setup import PreparedRun


def share_columns(config: Config, prepared: PreparedRun) -> tuple[Config, str]:
    """Set the devices' shares of a full graph to the speed of each device alone.

    The shares become part of the settings, so that a resumed run keeps them.

    Parameters
    ----------
    config
        All settings. Settings of other runs, with shares, or with `balance.predict=false` are unchanged.
    prepared
        The run's graph and model.

    Returns
    -------
    The settings, and a description of the shares' origin or of why there are none; empty for other runs.
    """
    is_team = config.sampler.whole_graph and len(config.trained_on) > 1
    if not is_team or config.gives_split or not config.balance.predict or prepared.is_own_model:
        return config, ""
    calibration, reason = usable()
    equal = "each device gets as many columns of chunks as the others"
    if calibration is None:
        reason = reason or "nothing was measured: run `hyrt calibrate --all`"
        return config, f"{equal}, because {reason.removeprefix('the ')}"
    try:
        platform = devices_of(config, calibration.platform)
        work = sampled_workload(config, prepared.graph, prepared.sampler)
    except ConfigError as error:
        return config, f"{equal}, because {error}"
    trainers, _ = named_trainers(platform, work, config)
    chunked = ChunkedWork.of(work, config, trainers[-1].device.kind)
    team = None if chunked is None else PredictedTeam.of(chunked, trainers, platform.host, config)
    if team is None:
        return config, ""
    shares = dict(zip((trainer.name for trainer in trainers), team.shares, strict=True))
    devices = [f"{name}={share:.3g}" for name, share in shares.items()]
    text = f"columns of chunks are dealt out by measured rates: {', '.join(devices)}"
    return config.model_copy(update={"devices": devices}), text
