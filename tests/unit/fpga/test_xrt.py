"""The host path on XRT's runtime without a card.

The runtime is XRT's own, the card is not there: kernels start and end, and compute nothing. What is tested is
what the host asks of XRT: programs, compute units, memory banks, alignment, order and times of commands, and
faults. That the sums are right is tested elsewhere, by the same host path on a device that computes.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from axlf import ARGUMENTS, DESIGN, connectivity, container, ip_layout, mem_topology, metadata, trainer
from cardless_xrt import ask, environment, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

TWO = ("hyrt_train_1", "hyrt_train_2")


def machine(folder: Path, content: bytes, mode: str = "noop") -> dict[str, str]:
    xclbin = folder / "hyrt_train.xclbin"
    xclbin.write_bytes(content)
    return environment(folder, xclbin, mode=mode)


def test_a_card_is_found_and_says_that_it_is_none(tmp_path: Path) -> None:
    answer, _ = ask("probe", machine(tmp_path, trainer(TWO, mhz=250)))
    (info,) = answer["infos"]
    assert info["kind"] == "fpga"
    assert info["simulated"]
    assert "emulated (noop): computes nothing" in info["description"]
    assert "2 x (4 PEs, 128 MACs)" in info["description"]
    assert info["memory_bytes"] == 64 << 30
    assert info["rates"]["macs_per_s"] == 2 * 128 * 250e6
    assert info["rates"]["source"].startswith("assumed")
    assert answer["reasons"] == []


def test_tasks_run_on_two_units_in_their_own_memory(tmp_path: Path) -> None:
    """Launches follow what they read, results are read after them, and a unit runs one task at a time."""
    answer, said = ask("tasks", machine(tmp_path, trainer(TWO)))
    assert answer["units"] == [0, 1, 0, 1, 0, 1, 0]
    for arrived, launch, back in zip(answer["arrived"], answer["launches"], answer["back"], strict=True):
        assert all(0 < start <= end <= launch[0] for start, end in arrived)
        assert launch[0] < launch[1] <= back[0] <= back[1]
    for first in (0, 1):
        own = answer["launches"][first::2]
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(own))
    assert answer["same_memory"]
    assert answer["left_bytes"] == 0
    # XRT copies what is not on a page's border, and warns.
    assert "unaligned" not in said
    assert "memory bank" not in said
    # Nothing was computed.
    assert answer["gradients"] == answer["loss_sum"] == 0
    # For a trace: every command by its name, with the times above.
    traced = [tuple(span) for span in answer["traced"]]
    assert [span for span in traced if span[0].startswith("hyrt_train_")] == [
        (f"hyrt_train_{unit + 1}", *times)
        for unit, times in zip(answer["units"], answer["launches"], strict=True)
    ]
    assert [times for name, *times in traced if name == "sums to host"] == answer["back"]
    assert sum(name == "weights" for name, *_ in traced) > 0


def test_xrt_refuses_memory_of_another_unit(tmp_path: Path) -> None:
    """So the test above shows that buffers are where their compute units reach them."""
    answer, said = ask("misplaced", machine(tmp_path, trainer(TWO)))
    assert "MEM_OBJECT_ALLOCATION_FAILURE" in answer
    assert "is allocated in memory bank 'DDR[0]'" in said


@pytest.mark.limit(170)
def test_the_device_passes_the_suite_as_one_that_computes_nothing(tmp_path: Path) -> None:
    answer, said = ask("suite", machine(tmp_path, trainer(TWO)))
    assert answer["passed"] >= 20, answer["skipped"]
    assert "unaligned" not in said


def sections(*left_out: int) -> bytes:
    """A trainer's container without some sections."""
    whole = {
        2: metadata("hyrt_train", TWO, ARGUMENTS, "xilinx_u250"),
        6: mem_topology(4),
        7: connectivity(2, len(ARGUMENTS), 4),
        8: ip_layout("hyrt_train", TWO),
        16: json.dumps(DESIGN).encode(),
    }
    return container(
        [(kind, part) for kind, part in whole.items() if kind not in left_out], platform="xilinx_u250"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (sections(6), "(for xilinx_u250) cannot be loaded on the card (clCreateProgramWithBinary failed"),
        (sections(8), "XRT does not provide the compute unit hyrt_train:hyrt_train_1"),
    ],
    ids=["no memory", "no units"],
)
def test_what_xrt_refuses_is_said_with_the_file(tmp_path: Path, content: bytes, said: str) -> None:
    answer, _ = ask("opening", machine(tmp_path, content))
    assert str(tmp_path / "hyrt_train.xclbin") in answer
    assert said in answer


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (b"rubbish", "noop", "not an xclbin"),
        (trainer(kernel="vadd"), "noop", "no kernel 'hyrt_train' (kernels: vadd)"),
        (trainer(units=()), "noop", "no compute unit"),
        (trainer(design=None), "noop", "hyrt_train.json, which states how hyrt_train.xclbin was built"),
        (
            trainer(mode=1),
            "hw_emu",
            "built for hw, but XCL_EMULATION_MODE is hw_emu: unset XCL_EMULATION_MODE",
        ),
    ],
    ids=["rubbish", "kernel", "units", "design", "mode"],
)
def test_an_unfit_xclbin_is_a_reason(tmp_path: Path, content: bytes, mode: str, said: str) -> None:
    answer, _ = ask("probe", machine(tmp_path, content, mode=mode))
    assert answer["infos"] == []
    (reason,) = answer["reasons"]
    assert str(tmp_path) in reason
    assert said in reason


def test_no_xclbin_is_a_reason_with_the_remedy(tmp_path: Path) -> None:
    variables = machine(tmp_path, b"")
    (tmp_path / "hyrt_train.xclbin").unlink()
    del variables["HYRT_XCLBIN"]
    variables["XDG_DATA_HOME"] = str(tmp_path / "data")
    answer, _ = ask("probe", variables)
    assert answer["infos"] == []
    (reason,) = answer["reasons"]
    assert str(tmp_path / "data" / "hyrt" / "hyrt_train.xclbin") in reason
    assert "HYRT_XCLBIN" in reason


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("XCL_EMULATION_MODE", "XRT finds no card: check it"),
        ("XILINX_XRT", "source XRT's setup.sh, because XILINX_XRT is not set"),
    ],
)
def test_without_a_card_there_is_none(tmp_path: Path, variable: str, said: str) -> None:
    """XRT on a machine without its driver; and not set up."""
    if Path("/sys/bus/pci/drivers/xocl").exists():
        pytest.skip("this machine has a card's driver")
    variables = machine(tmp_path, trainer())
    del variables[variable]
    answer, _ = ask("probe", variables)
    assert answer["infos"] == []
    (reason,) = answer["reasons"]
    assert said in reason


def test_opencl_is_not_loaded_where_xrt_is_not(tmp_path: Path) -> None:
    variables = {**machine(tmp_path, trainer()), "OCL_ICD_VENDORS": str(tmp_path)}
    answer, _ = ask("probe", variables)
    assert answer["infos"] == []
    assert "XRT, the card's runtime, is not" in answer["reasons"][0]
    assert answer["loaded"] == []
