"""What is made of what backends say. Real ones, working and broken, are in end_to_end/test_doctor.py."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from hyrt.doctor.finding import DoctorFinding
from hyrt.doctor.software_checks import ProbedBackends, evaluate_backends, probe_backends
from hyrt.runtime.isolated_worker import Answer, IsolatedWorker


def info(name: str, **more: Any) -> dict[str, Any]:
    kind, _, index = name.partition(":")
    known = {"description": "a device", "zero_copy": False, "host_cores": 0, "simulated": False}
    return {"name": name, "kind": kind, "index": int(index), "memory_bytes": 2**30, **known, **more}


def trained(name: str, **more: Any) -> list[dict[str, Any]]:
    done = {"computes": True, "losses": [1.0, 0.9], "open_s": 0.1, "seconds": 0.5, **more}
    return [{"device": name, "event": "begun"}, {"device": name, "event": "trained", **done}]


def backends(**answers: Answer) -> ProbedBackends:
    entries = {kind: [EntryPoint(kind, f"{kind}_module:Device", "hyrt.devices")] for kind in answers}
    return ProbedBackends(entries, answers)


CPU = Answer(({"found": [info("cpu:0", host_cores=2), info("cpu:1", host_cores=2)]}, *trained("cpu:0")))
FAILS = Answer(
    (
        {"found": [info("gpu:0")]},
        {"device": "gpu:0", "event": "begun"},
        {"device": "gpu:0", "event": "failed", "why": "boom"},
    )
)
CRASHES = Answer(({"found": [info("gpu:0")]}, {"device": "gpu:0", "event": "begun"}), "crashes with SIGSEGV")


def states(asked: ProbedBackends, *wanted: str) -> dict[str, str]:
    return {found.check: found.state for found in evaluate_backends(asked, wanted or ("cpu",))}


def only(found: list[DoctorFinding], check: str) -> DoctorFinding:
    (one,) = [each for each in found if each.check == check]
    return one


def test_a_working_backend_is_one_line_a_tried_device() -> None:
    assert states(backends(cpu=CPU)) == {"device cpu:0": "ok"}


@pytest.mark.parametrize("answer", [FAILS, CRASHES])
def test_a_failing_step_is_broken_where_the_run_needs_it(answer: Answer) -> None:
    asked = backends(cpu=CPU, gpu=answer)
    assert states(asked)["device gpu:0"] == "warning"
    assert states(asked, "cpu", "gpu:0")["device gpu:0"] == "broken"
    assert states(asked, "auto")["device gpu:0"] == "broken"
    found = only(evaluate_backends(asked, ["gpu"]), "device gpu:0")
    assert ("boom" in found.found) or ("SIGSEGV" in found.found)
    assert "python -m hyrt.testing gpu:0" in found.remedy


@pytest.mark.parametrize("more", [{"simulated": True}, {"host_cores": 2}])
def test_auto_needs_no_device_that_it_never_takes(more: dict[str, Any]) -> None:
    (_, *events) = FAILS.messages
    other = Answer(({"found": [info("gpu:0", **more)]}, *events))
    assert states(backends(cpu=CPU, gpu=other), "auto")["device gpu:0"] == "warning"


def test_a_backend_that_breaks_before_it_finds_anything() -> None:
    asked = backends(cpu=CPU, gpu=Answer(problem="hangs: no answer within 3 s, at x.py:1 in probe"))
    assert states(asked)["backend gpu"] == "warning"
    found = only(evaluate_backends(asked, ["gpu:0"]), "backend gpu")
    assert found.state == "broken"
    assert found.remedy.startswith("restart the driver of gpu")


def test_what_is_missing_is_a_note_until_the_run_names_it() -> None:
    asked = backends(cpu=CPU, gpu=Answer(({"missing": "no driver:\n install one"},)))
    assert states(asked) == {"device cpu:0": "ok", "backend gpu": "note"}
    found = only(evaluate_backends(asked, ["gpu"]), "device gpu")
    assert (found.state, found.found) == ("broken", "is not available: no driver: install one")


@pytest.mark.parametrize("name", ["cpu:7", "nothing", "cpu:x"])
def test_a_device_that_cannot_be_is_broken(name: str) -> None:
    found = only(evaluate_backends(backends(cpu=CPU), [name]), f"device {name}")
    assert found.state == "broken"


def test_two_that_claim_a_kind_are_named() -> None:
    entries = [EntryPoint("gpu", f"{each}:Device", "hyrt.devices") for each in ("one", "two")]
    asked = ProbedBackends({"cpu": backends(cpu=CPU).declared["cpu"], "gpu": entries}, {"cpu": CPU})
    found = only(evaluate_backends(asked, ["cpu"]), "backend gpu")
    assert (found.state, found.found) == (
        "warning",
        "is declared by one:Device and by two:Device",
    )
    # Nothing that is broken beside it is its cause.
    damaged = [finding("kernel cache", damaged={"a.nbc": "torn"}, problem="")]
    assert only(evaluate_backends(asked, ["cpu"], damaged), "backend gpu").remedy == "uninstall one of them"
    assert only(evaluate_backends(asked, ["gpu"]), "backend gpu").state == "broken"


def test_auto_needs_one_that_computes() -> None:
    simulated = Answer(({"found": [info("null:0", simulated=True)]}, *trained("null:0", computes=False)))
    assert states(backends(null=simulated), "auto")["devices"] == "broken"
    assert "devices" not in states(backends(null=simulated, cpu=CPU), "auto")


def finding(check: str, **figures: Any) -> DoctorFinding:
    return DoctorFinding(check, "broken", "bad", "mend it", figures=figures)


def test_a_backend_that_repeats_a_known_problem_points_to_it() -> None:
    asked = backends(cpu=Answer(problem="RuntimeError: boom"))
    causes = [finding("package numba", problem="RuntimeError: boom"), finding("package rich")]
    (found,) = evaluate_backends(asked, ["cpu"], causes)
    assert (found.state, found.remedy) == ("broken", "first follow the line on package numba above")
    (other,) = evaluate_backends(backends(cpu=Answer(problem="crashes with SIGSEGV")), ["cpu"], causes)
    assert other.remedy.startswith("update or uninstall cpu_module:Device")


def test_with_damaged_kernels_no_driver_is_blamed() -> None:
    missing = Answer(({"missing": "no driver"},))
    asked = backends(cpu=Answer(problem="crashes with SIGSEGV"), gpu=FAILS, other=missing)
    causes = [finding("kernel cache", damaged={"a.nbc": "torn"}, problem="")]
    found = {each.check: each.remedy for each in evaluate_backends(asked, ["cpu"], causes)}
    cause = "first follow the line on kernel cache above"
    assert found == {"backend cpu": cause, "device gpu:0": cause, "backend other": ""}


def test_devices_with_memory_of_their_own() -> None:
    opencl = Answer(({"found": [info("opencl:0", zero_copy=True, host_cores=2)]},))
    assert backends(cpu=CPU, gpu=FAILS, opencl=opencl).devices_with_memory == ["gpu:0"]


def test_damaged_declarations_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(group: str) -> None:
        raise ValueError("bad entry\npoint")

    monkeypatch.setattr("hyrt.runtime.entry_points.entry_points", damaged)
    with IsolatedWorker() as children:
        asked = probe_backends(children, 1.0, 1)
    (found,) = evaluate_backends(asked, ["cpu"])
    assert found.state == "broken"
    assert found.found.endswith("ValueError: bad entry point")
