"""Checks of what a device says of itself."""

from __future__ import annotations

import inspect
from typing import get_args

from hyrt.device import Device, DeviceInfo, InputForm
from hyrt.device.capabilities import CAPABILITIES, GathersRows
from hyrt.testing.trial import Trial, demand
from hyrt.testing.verdicts import Failed

_CALLS = ("probe", "open", "load", "transfer", "propagate", "update", "close")


def _demand(holds: bool, expected: str, happened: object) -> None:
    demand(holds, expected, f"it is {happened!r}")


def info_describes_the_device(trial: Trial) -> None:
    """Its info has values of the right types and ranges."""
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


def every_call_of_the_protocol_is_there(trial: Trial) -> None:
    """Nothing is missing, and each call can be made as the protocol, or a declared capability, writes it."""
    device = trial.open()
    calls = {name: getattr(Device, name) for name in _CALLS}
    for capability in CAPABILITIES:
        if isinstance(device, capability):
            calls |= {name: getattr(capability, name) for name in capability.__abstractmethods__}
    for name, written in calls.items():
        if isinstance(written, property):
            continue
        call = getattr(device, name, None)
        _demand(callable(call), f"a method {name}", call)
        assert call is not None
        wanted = [p for p in inspect.signature(written).parameters if p not in ("self", "cls")]
        try:
            inspect.signature(call).bind(*wanted)
        except TypeError as error:
            raise Failed(f"expected {name}({', '.join(wanted)}); {error}") from error


def a_device_that_takes_ids_gathers_rows(trial: Trial) -> None:
    """A device with the form `ids` declares that it gathers rows: else no mini-batch has that form."""
    device = trial.open()
    gathers = isinstance(device, GathersRows)
    _demand(
        gathers or "ids" not in device.info.forms, "a device that takes ids to be a GathersRows", type(device)
    )


def probe_finds_devices_of_its_kind(trial: Trial) -> None:
    """Twice the same, without raising; none where the hardware is not there."""
    device = trial.open()
    found = device.probe()
    _demand(isinstance(found, list), "probe to return a list", type(found))
    for info in found:
        _demand(isinstance(info, DeviceInfo), "probe to find DeviceInfo", type(info))
        _check_info(info)
        _demand(info.kind == device.info.kind, f"devices of kind {device.info.kind}", info.kind)
    indexes = [info.index for info in found]
    _demand(len(set(indexes)) == len(indexes), "an index of its own for each device", indexes)
    again = [info.name for info in device.probe()]
    _demand([info.name for info in found] == again, "probe to find the same again", again)


def a_device_that_computes_nothing_says_it_is_simulated(trial: Trial) -> None:
    """Nothing is faked."""
    simulated = trial.computes or trial.open().info.simulated
    _demand(simulated, "info.simulated of a device that computes nothing", False)
