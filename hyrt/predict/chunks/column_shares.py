"""Shares of a full graph among several devices, by measured rates."""

from __future__ import annotations

from hyrt.config import Config
from hyrt.errors import ConfigError
from hyrt.predict.calibrate.store import usable_calibration
from hyrt.predict.chunks.chunk_prediction import configured_trainers
from hyrt.predict.chunks.chunk_team import PredictedDeviceGroup
from hyrt.predict.chunks.chunked_work import ChunkedWork
from hyrt.predict.predict_run import run_platform
from hyrt.predict.workload import sampled_workload
from hyrt.training.setup import PreparedRun


def share_columns(config: Config, prepared: PreparedRun) -> tuple[Config, str]:
    """Set the devices' shares of a full graph to the speed of each device alone; a resumed run keeps them.

    Settings with shares, with `balance.predict=false` or of other runs do not change. Returns the settings,
    and where the shares come from or why there are none; "" for other runs.
    """
    is_team = config.sampler.is_full_graph and len(config.training_requests) > 1
    if not is_team or config.has_explicit_split or not config.balance.predict or prepared.is_own_model:
        return config, ""
    calibration, reason = usable_calibration()
    equal = "each device gets as many columns of chunks as the others"
    if calibration is None:
        reason = reason or "nothing was measured: run `hyrt calibrate --all`"
        return config, f"{equal}, because {reason.removeprefix('the ')}"
    try:
        platform = run_platform(config, calibration.platform)
        work = sampled_workload(config, prepared.graph, prepared.sampler)
    except ConfigError as error:
        return config, f"{equal}, because {error}"
    trainers, _ = configured_trainers(platform, work, config)
    chunked = ChunkedWork.from_config(work, config, trainers[-1].device.kind)
    team = (
        None
        if chunked is None
        else PredictedDeviceGroup.from_config(chunked, trainers, platform.host, config)
    )
    if team is None:
        return config, ""
    shares = dict(zip((trainer.name for trainer in trainers), team.shares, strict=True))
    devices = [f"{name}={share:.3g}" for name, share in shares.items()]
    text = f"columns of chunks are dealt out by measured rates: {', '.join(devices)}"
    return config.model_copy(update={"devices": devices}), text
