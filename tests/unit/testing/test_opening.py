"""A device that cannot be opened is said before any check."""

from __future__ import annotations

from typing import Any

import pytest

from hyrt.errors import DeviceUnavailable
from hyrt.testing import check_device


def test_an_open_that_raises() -> None:
    def open_fn(options: Any) -> Any:
        raise RuntimeError("no power")

    with pytest.raises(DeviceUnavailable, match=r"the device: open failed: .*no power"):
        check_device(open_fn)


def test_an_open_that_returns_nothing() -> None:
    with pytest.raises(DeviceUnavailable, match="NoneType: not a device"):
        check_device(lambda options: None)  # type: ignore[arg-type,return-value]
