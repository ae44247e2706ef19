"""Networks from times that were made from known ones, and their files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hyrt_perfmodel.network import (
    Network,
    TimedCollective,
    find_network,
    fit_network,
    format_network,
    read_network,
)

# 0.4 ms a message, 120 MB/s, and 80 % of that in exchanges.
LATENCY_S, RATE, PART = 4e-4, 1.2e8, 0.8
SIZES = [64 * 4**i for i in range(10)]


# 30 us of a core a message, and 0.5 s for 1e9 bytes.
MESSAGE_S, GB_S = 3e-5, 0.5


def travels(operation: str, messages: int, rate: float) -> list[TimedCollective]:
    return [
        TimedCollective(
            operation,
            messages,
            size,
            messages * LATENCY_S + size / rate,
            messages * MESSAGE_S + size * GB_S / 1e9,
        )
        for size in SIZES
    ]


def test_known_terms_are_found_again() -> None:
    all_reduces = travels("all-reduces", 6, RATE)
    exchanges = travels("exchanges", 3, PART * RATE)
    # Neither sizes between nor one small operation that others have disturbed change them.
    all_reduces[5] = TimedCollective("all-reduces", 6, SIZES[5], 1.0)
    exchanges[1] = TimedCollective("exchanges", 3, SIZES[1], 1.0)
    found = fit_network(all_reduces, exchanges, name="n", source="s", machines=2)
    assert found.network.message_core_s == pytest.approx(MESSAGE_S, rel=0.01)
    assert found.network.gb_core_s == pytest.approx(GB_S, rel=0.01)
    assert found.network.ranks_per_machine(8) == 4
    assert found.network.latency_s == pytest.approx(LATENCY_S, rel=0.01)
    assert found.network.gb_s == pytest.approx(RATE / 1e9, rel=0.01)
    assert found.network.uneven_part == pytest.approx(PART, rel=0.01)
    assert found.errors.keys() == {"all-reduces", "exchanges"}
    assert max(found.errors.values()) < 0.01


def test_errors_are_those_of_what_the_terms_predict() -> None:
    # Sizes between take twice as long as the terms say: 5 of 10, so that the median is half of 50 %.
    slow = [
        TimedCollective("all-reduces", 6, each.num_bytes, each.seconds * (2 if 2 < i < 8 else 1))
        for i, each in enumerate(travels("all-reduces", 6, RATE))
    ]
    found = fit_network(slow, travels("exchanges", 3, RATE), name="n", source="s")
    assert found.errors["all-reduces"] == pytest.approx(0.25, abs=0.01)


def test_times_that_do_not_grow_give_no_bandwidth() -> None:
    flat = [TimedCollective("all-reduces", 2, size, 0.01) for size in SIZES]
    with pytest.raises(ValueError, match="bandwidth cannot be determined"):
        fit_network(flat, flat, name="n", source="s")


def test_a_network_comes_back_from_its_file(tmp_path: Path) -> None:
    found = fit_network(
        travels("all-reduces", 6, RATE),
        travels("exchanges", 3, RATE),
        name="lan",
        source="measured",
        machines=1,
    )
    file = tmp_path / "lan.yaml"
    file.write_text(format_network(found.network), encoding="utf-8")
    assert read_network(file) == find_network(str(file)) == found.network
    # Latency and bandwidth are enough.
    file.write_text("latency_s: 1.0e-5\ngb_s: 2\n", encoding="utf-8")
    short = find_network(str(file))
    assert (short.name, short.latency_s, short.gb_s, short.uneven_part) == ("lan", 1e-5, 2, 1)
    assert (short.message_core_s, short.gb_core_s, short.ranks_per_machine(4)) == (0, 0, 1)


words = st.text("0123456789-+._eExbn: ", min_size=1, max_size=8) | st.text(
    st.characters(exclude_categories=["Cs", "Cc"]), max_size=12
)


@settings(max_examples=200, deadline=None)
@given(words, words, st.floats(0, 10), st.floats(1e-6, 1e6), st.floats(0, 1, exclude_min=True))
@example("08", "1e3", 1e-5, 2.0, 1.0)
def test_any_network_comes_back(name: str, source: str, latency_s: float, gb_s: float, part: float) -> None:
    network = Network(name=name, source=source, latency_s=latency_s, gb_s=gb_s, uneven_part=part)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "n.yaml"
        file.write_text(format_network(network), encoding="utf-8")
        assert read_network(file) == network


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gb_s: 2\n", "the key 'latency_s' is missing"),
        ("latency_s: 1.0e-5\ngb_s: 0\n", "gb_s must be a number above 0, got 0.0"),
        ("latency_s: -1\ngb_s: 2\n", "latency_s must be a number of at least 0, got -1.0"),
        ("latency_s: 0\ngb_s: 2\nmachines: 1.5\n", "machines must be an integer, got 1.5"),
        (
            "latency_s: 0\ngb_s: 2\nmessage_core_s: -1\n",
            "message_core_s must be a number of at least 0, got -1",
        ),
        ("latency: 1.0e-5\ngb_s: 2\n", "unknown key 'latency': did you mean 'latency_s'"),
        ("latency_s: fast\ngb_s: 2\n", "latency_s must be a number, got 'fast'"),
    ],
)
def test_a_wrong_file_is_told_with_its_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "n.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as error:
        find_network(str(file))
    assert str(file) in str(error.value) or "network 'n'" in str(error.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no\.yaml cannot be read"):
        find_network(str(tmp_path / "no.yaml"))
