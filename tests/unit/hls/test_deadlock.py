"""The bounded simulation finds every deadlock, says where, and ends."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from unit.hls import pipeline_oracle
from unit.hls.simulated_streams import MISSING, SimulationError, Step, run_case, run_pipeline

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

TASKS = Path("/proc/self/task")
Programs = list[list[Step]]


@pytest.fixture(autouse=True)
def _no_process_thread_left() -> Iterator[None]:
    if not TASKS.exists():
        yield
        return
    run_case("fork_join", 1, 16, bounded=True)  # compiles and loads
    before = {task.name for task in TASKS.iterdir()}
    yield
    deadline = time.monotonic() + 20
    while left := {task.name for task in TASKS.iterdir()} - before:
        assert time.monotonic() < deadline, f"threads {left} are left"
        time.sleep(0.01)


@pytest.mark.parametrize("case", ["fork_join", "nested"])
def test_a_planted_deadlock_is_found_and_named(case: str) -> None:
    started = time.monotonic()
    with pytest.raises(SimulationError) as failed:
        run_case(case, 5, 4, bounded=True)
    assert time.monotonic() - started < 10
    message = str(failed.value)
    assert message.startswith("deadlock: ")
    for waits in (
        "process 'fork' of region 'normalise' waits to write stream 'bypass' (4 of 4 values)",
        "process 'total' of region 'normalise' waits to read stream 'summed' (0 of 2 values)",
        "process 'join' of region 'normalise' waits to read stream 'totals' (0 of 2 values)",
    ):
        assert waits in message
    assert ("process 'sink' of region 'outer' waits to read stream 'out'" in message) == (case == "nested")
    # An unbounded simulation cannot see it, and enough depth cures it.
    expected = run_case(case, 5, 4, bounded=False)
    assert run_case(case, 5, 16, bounded=True) == run_case(case, 5, 16, bounded=False) == expected


def test_the_fork_join_sums() -> None:
    groups = [range(8 * group, 8 * group + 8) for group in range(5)]
    assert run_case("fork_join", 5, 16, bounded=True) == sum(sum(group) ** 2 for group in groups)


@pytest.mark.parametrize("bounded", [False, True])
def test_a_process_that_throws_unwinds_the_others(bounded: bool) -> None:
    # A writer to a full stream, a reader of an empty one and one that polls are there beside it.
    started = time.monotonic()
    with pytest.raises(
        SimulationError, match=r"^process 'broken' of region 'faulty': the fourth value is bad$"
    ):
        run_case("throwing", 0, bounded=bounded)
    with pytest.raises(SimulationError, match=r"^process 'throw' of region 'faulty' threw something"):
        run_case("throwing", 1, bounded=bounded)
    assert time.monotonic() - started < 10


def test_a_merge_that_polls_forever_is_a_deadlock() -> None:
    expected = sum(way * 1000 + value for way in range(3) for value in range(1, 51))
    assert run_case("merged", 50, 1, bounded=True) == run_case("merged", 50, 1, bounded=False) == expected
    started = time.monotonic()
    polls = r"process 'merge' of region 'merging' polls stream 'ways\[1\]' \(0 of 3 values\) in vain"
    with pytest.raises(SimulationError, match=r"^deadlock: " + polls):
        run_case("merged", 50, 0, bounded=True)
    assert time.monotonic() - started < 10
    with pytest.raises(
        SimulationError, match=r"process 'merge' of region 'merging' polls stream 'ways\[1\]' in vain"
    ):
        run_case("merged", 50, 0, bounded=False)


def test_a_process_that_drains_by_counting_is_no_deadlock() -> None:
    expected = 0
    for value in range(1, 21):
        expected = (expected * 31 + value) % 2**64
    assert run_case("request_reply", 20, 100, bounded=True) == expected


def test_waiting_with_size_and_full() -> None:
    assert run_case("patient", 41, bounded=True) == run_case("patient", 41, bounded=False)


def test_a_stream_has_one_writer() -> None:
    with pytest.raises(
        SimulationError,
        match=r"stream 'shared' is written by .*produce\[[01]\].* and by .*produce\[[01]\]",
    ):
        run_case("two_writers", bounded=True)


def test_simulations_at_the_same_time_do_not_meet() -> None:
    def simulate(number: int) -> tuple[bool, int]:
        try:
            return False, run_case("fork_join", 20 + number, 4 if number % 2 else 16, bounded=True)
        except SimulationError as failure:
            return "deadlock" in str(failure), 0

    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(simulate, range(24)))
    assert ends == [
        (True, 0) if i % 2 else (False, run_case("fork_join", 20 + i, 16, bounded=False)) for i in range(24)
    ]


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Programs, list[int]]:
    """Processes that write only to later ones, in steps of any order; and what every stream carries."""
    processes = draw(st.integers(2, 6))
    ends = draw(
        st.lists(
            st.tuples(st.integers(0, processes - 2), st.integers(0, 99)).map(
                lambda pair: (pair[0], pair[0] + 1 + pair[1] % (processes - 1 - pair[0]))
            ),
            min_size=1,
            max_size=8,
        )
    )
    totals = [draw(st.integers(1, 12)) for _ in ends]
    programs: Programs = [[] for _ in range(processes)]
    for stream, (writer, reader) in enumerate(ends):
        for process, writes in ((writer, True), (reader, False)):
            left = totals[stream]
            while left:
                count = draw(st.integers(1, left))
                programs[process].append((writes, stream, count))
                left -= count
    return [list(draw(st.permutations(program))) for program in programs], totals


@settings(max_examples=60)
@given(pipelines(), st.data())
def test_a_pipeline_deadlocks_exactly_when_tokens_say_so(
    pipeline: tuple[Programs, list[int]], data: st.DataObject
) -> None:
    programs, totals = pipeline
    depths = [data.draw(st.integers(1, total), label="depth") for total in totals]
    end = pipeline_oracle.run(programs, depths)
    event("deadlock" if end.blocked else "passes")
    if end.blocked:
        with pytest.raises(
            SimulationError, match="^" + re.escape(pipeline_oracle.deadlock_message(end, depths))
        ):
            run_pipeline(programs, depths, bounded=True)
    else:
        assert run_pipeline(programs, depths, bounded=True) == end.sums


@settings(max_examples=40)
@given(pipelines())
def test_the_least_sufficient_depth_passes_and_one_less_never_does(
    pipeline: tuple[Programs, list[int]],
) -> None:
    programs, totals = pipeline
    # Who may write all it has to write never waits to write, and a feed-forward pipeline then has nothing to
    # wait for.
    expected = run_pipeline(programs, totals, bounded=True)
    assert (
        expected
        == run_pipeline(programs, [1] * len(totals), bounded=False)
        == pipeline_oracle.run(programs, totals).sums
    )
    least = next(
        depth
        for depth in range(1, max(totals) + 1)
        if not pipeline_oracle.run(programs, [depth] * len(totals)).blocked
    )
    assert run_pipeline(programs, [least] * len(totals), bounded=True) == expected
    assume(least > 1)
    for _ in range(3):
        with pytest.raises(SimulationError, match=r"^deadlock: "):
            run_pipeline(programs, [least - 1] * len(totals), bounded=True)


@settings(max_examples=25)
@given(pipelines(), st.data())
def test_a_reader_that_wants_too_much_or_too_little_is_an_error(
    pipeline: tuple[Programs, list[int]], data: st.DataObject
) -> None:
    programs, totals = pipeline
    reads = [(p, i) for p, program in enumerate(programs) for i, step in enumerate(program) if not step[0]]
    process, i = data.draw(st.sampled_from(reads))
    _, stream, count = programs[process][i]
    more = data.draw(st.booleans())
    programs = [list(program) for program in programs]
    programs[process][i] = (False, stream, count + 1 if more else count - 1)
    end = pipeline_oracle.run(programs, totals)
    expected = (
        pipeline_oracle.deadlock_message(end, totals)
        if more
        else f"nobody read what was left in stream 's{stream}' (1 "
    )
    with pytest.raises(SimulationError, match="^" + re.escape(expected)):
        run_pipeline(programs, totals, bounded=True)
    expected = (
        f"process 'process[{process}]' of region 'pipeline' reads from stream 's{stream}', "
        if more
        else expected
    )
    with pytest.raises(SimulationError, match="^" + re.escape(expected)):
        run_pipeline(programs, totals, bounded=False)
