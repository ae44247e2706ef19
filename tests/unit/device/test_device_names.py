from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyrt.config import build_config
from hyrt.device.discovery import DeviceRequest, parse_request, split_by_shares
from hyrt.errors import ConfigError


def test_a_name_may_carry_a_share() -> None:
    assert parse_request("cuda:0=2.5") == DeviceRequest("cuda:0", 2.5)
    assert parse_request("cpu") == DeviceRequest("cpu", None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"devices": "cpu=1,null:0"}, "set a share for all or none"),
        ({"devices": "cpu=0,null:0=0"}, "all shares are 0: set at least one share above 0"),
        ({"devices": "cpu=-1,null:0=2"}, "must be a number of at least 0"),
        ({"devices": "cpu=inf"}, "must be a number of at least 0"),
        ({"devices": "cpu=much"}, "must be a number of at least 0"),
        ({"devices": "cpu=٣"}, "must be a number of at least 0"),
        ({"devices": "cpu=1_0"}, "must be a number of at least 0"),
        ({"devices": "cpu,"}, "'' is not a device name"),
        ({"devices": "=3"}, "'=3' is not a device name"),
        ({"devices": "auto,cpu"}, "use auto alone"),
        ({"devices": "auto=2"}, "auto cannot have a share"),
        (
            {"devices": "cpu=1,null:0=1", "split": [512, 512]},
            "split cannot be combined with .*: remove one of them",
        ),
        ({"devices": "auto", "split": [1024]}, "split cannot be combined with .*: remove one of them"),
        ({"sampler": {"kind": "saint", "on_device": True}}, "is a setting of sampler.kind=neighbor"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(settings)


@given(
    total=st.integers(0, 5000),
    shares=st.lists(st.floats(0, 100) | st.integers(0, 9), min_size=1, max_size=6).filter(
        lambda s: sum(s) > 1e-6
    ),
)
def test_shares_cut_a_step_exactly_and_in_proportion(total: int, shares: list[float]) -> None:
    split = split_by_shares(total, shares)
    assert sum(split) == total
    for part, share in zip(split, shares, strict=True):
        assert part >= 0
        assert share > 0 or part == 0
        # One more or less by rounding, and as many as devices that were given their first.
        assert abs(part - total * share / sum(shares)) <= 1 + len(shares)
    if total >= len(shares):
        assert all(part >= 1 for part, share in zip(split, shares, strict=True) if share > 0)


def test_equal_shares_are_equal_parts() -> None:
    assert split_by_shares(1024, [1, 1, 1]) == [342, 341, 341]
    assert split_by_shares(1024, [1, 3]) == [256, 768]
    assert split_by_shares(1024, [0, 1]) == [0, 1024]
    assert split_by_shares(1024, [1e-6, 1]) == [1, 1023]
