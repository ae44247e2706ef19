from __future__ import annotations

from hyrt.doctor.host_checks import check_bandwidth, evaluate_bandwidth
from hyrt.runtime.isolated_worker import Answer, IsolatedWorker


def said(gather: float, calibrated: float | None) -> Answer:
    return Answer(({"copy_gb_s": 20.0}, {"gather_gb_s": gather}, {"calibrated_gb_s": calibrated}))


def state(answer: Answer) -> str:
    (found,) = evaluate_bandwidth(answer, 2)
    return found.state


def test_it_is_measured_with_little_memory() -> None:
    with IsolatedWorker() as children:
        (found,) = check_bandwidth(children, 60.0, 2, 64 * 2**20)
    # What any machine that runs this reaches, and none exceeds.
    assert 0.05 < found.figures["copy_gb_s"] < 10_000
    assert 0.05 < found.figures["gather_gb_s"] < 10_000


def test_slower_than_calibrated_or_than_any_machine_is_a_warning() -> None:
    assert state(said(10.0, None)) == "ok"
    assert state(said(10.0, 12.0)) == "ok"
    assert state(said(10.0, 40.0)) == "warning"
    assert state(said(0.5, None)) == "warning"


def test_what_could_not_be_measured_is_a_warning() -> None:
    (found,) = evaluate_bandwidth(Answer(({"copy_gb_s": 20.0},), "crashes with SIGBUS"), 2)
    assert found.state == "warning"
    assert found.found == "could not be measured: crashes with SIGBUS"
