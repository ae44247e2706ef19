"""Checks of a device's description and methods."""

from __future__ import annotations

import inspect
from typing import get_args

from hyrt.device import Device, DeviceInfo, InputForm
from hyrt.device.capabilities import CAPABILITIES, GathersRows
from hyrt.testing.trial import Trial, demand
from hyrt.testing.verdicts import Failed

_CALLS = ("probe", "open", "load", "transfer", "propagate", "update", "close")


def _demand(holds: bool, expected: str, actual: object) -> None:
    demand(holds, expected, f"it is {actual!r}")


def info_describes_the_device(trial: Trial) -> None:
    """Check that the info has values of the right types and ranges."""
    info = trial.open().info
    _demand(isinstance(info, DeviceInfo), "info to be a DeviceInfo", type(info))
    _check_info(info)


def _check_info(info: DeviceInfo) -> None:
    _demand(
        info.kind.replace("-", "_").isidentifier() and info.kind.islower(),
        "kind to be a lower-case word",
        info.kind,
    )
    _demand(bool(info.description), "description to be one line", info.description)
    known = get_args(InputForm)
    _demand("rows" in info.forms, "forms to have rows", info.forms)
    _demand(
        set(info.forms) <= set(known) and len(set(info.forms)) == len(info.forms),
        f"forms to be some of {', '.join(known)}, each once",
        info.forms,
    )
    rates = info.rates
    if rates is not None:
        _demand(
            rates.source.startswith(("measured", "assumed")),
            "the source of its rates to begin with measured or assumed",
            rates.source,
        )


def every_protocol_method_is_implemented(trial: Trial) -> None:
    """Check that all methods of the protocol and of declared capabilities exist with the right parameters."""
    device = trial.open()
    calls = {name: getattr(Device, name) for name in _CALLS}
    for capability in CAPABILITIES:
        if isinstance(device, capability):
            calls |= {name: getattr(capability, name) for name in capability.__abstractmethods__}
    for name, declared in calls.items():
        if isinstance(declared, property):
            continue
        call = getattr(device, name, None)
        _demand(callable(call), f"a method {name}", call)
        assert call is not None
        parameters = [p for p in inspect.signature(declared).parameters if p not in ("self", "cls")]
        try:
            inspect.signature(call).bind(*parameters)
        except TypeError as error:
            raise Failed(f"expected {name}({', '.join(parameters)}); {error}") from error


def a_device_that_takes_ids_gathers_rows(trial: Trial) -> None:
    """Check that a device with the form `ids` declares GathersRows; otherwise no mini-batch has that form."""
    device = trial.open()
    gathers = isinstance(device, GathersRows)
    _demand(
        gathers or "ids" not in device.info.forms, "a device that takes ids to be a GathersRows", type(device)
    )


def probe_finds_devices_of_its_kind(trial: Trial) -> None:
    """Check that probing twice returns the same devices without raising, or none if the hardware is
    absent.
    """
    device = trial.open()
    devices = device.probe()
    _demand(isinstance(devices, list), "probe to return a list", type(devices))
    for info in devices:
        _demand(isinstance(info, DeviceInfo), "probe to find DeviceInfo", type(info))
        _check_info(info)
        _demand(info.kind == device.info.kind, f"devices of kind {device.info.kind}", info.kind)
    indexes = [info.index for info in devices]
    _demand(len(set(indexes)) == len(indexes), "an index of its own for each device", indexes)
    names = [info.name for info in device.probe()]
    _demand([info.name for info in devices] == names, "probe to find the same again", names)


def a_device_without_computation_is_marked_simulated(trial: Trial) -> None:
    """Check that a device without computation is marked as simulated."""
    simulated = trial.computes or trial.open().info.simulated
    _demand(simulated, "info.simulated of a device that computes nothing", False)
