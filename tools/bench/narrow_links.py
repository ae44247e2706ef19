"""Narrow rows on the published platforms, in simulation: where links bound a run, and how the split follows.

    python tools/bench/narrow_links.py [--data synthetic:products-s] [--links 1 4 16]

`alone`: accelerators train without the CPU, so that nothing but their links can bound them; predicted steps
by format. `together`: a run starts with the split and the threads that are best for float32 rows, has rows of
another format, and the resource manager's policy `model` moves the split; what the accelerators have before,
after 30 and 60 steps and where it is best for the format (after 30 the policy may be trying something).
Nothing is measured here: platforms are described, and times are simulated.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

from hyrt_hls.task.arena_limits import with_task_targets
from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.platforms.platform import Platform
from hyrt_perfmodel.platforms.platform_file import load_platform
from hyrt_perfmodel.prediction.mapping import initial_assignment
from hyrt_perfmodel.prediction.predict import predict
from hyrt_perfmodel.simulation.simulate import simulate
from hyrt_perfmodel.workloads.workload import TrainingWorkload

from hyrt.balance.registry import policy
from hyrt.config import build_config
from hyrt.predict.workload import configured_workload

PLATFORMS = ("2x-epyc7763-4x-a5000", "2x-epyc7763-4x-u250")
FORMATS = ("stored", "float16", "int8")
STEPS, AT, NOISE = 60, 30, 0.03


def machines(name: str, work: TrainingWorkload, links: list[float]) -> Iterator[tuple[float, Platform]]:
    """A platform with links that are so many times slower."""
    platform = load_platform(name)
    if any(each.design is not None for each in platform.accelerators):
        platform = with_task_targets(platform, work)
    for factor in links:
        slow = tuple(replace(each, link_gb_s=each.link_gb_s / factor) for each in platform.accelerators)
        yield factor, replace(platform, accelerators=slow)


def works(data: str) -> dict[str, TrainingWorkload]:
    """GraphSAGE with rows of each format."""
    sections = {"model": {"kind": "graphsage", "hidden": 256}}
    return {
        rows: configured_workload(build_config({**sections, "data": {"source": data, "rows": rows}}))
        for rows in FORMATS
    }


def alone(name: str, factor: float, platform: Platform, asked: dict[str, TrainingWorkload]) -> None:
    """Predicted steps of the accelerators without the CPU."""
    platform = replace(platform, host=replace(platform.host, trains=False))
    found = {rows: predict(platform, work) for rows, work in asked.items()}
    wide_s = found["stored"].iteration_s
    for rows, each in found.items():
        print(
            f"| {name} | 1/{factor:g} | {rows} | {1e3 * each.iteration_s:.3f} | "
            f"{wide_s / each.iteration_s:.2f} | {each.bottleneck} |",
            flush=True,
        )


def together(name: str, factor: float, platform: Platform, asked: dict[str, TrainingWorkload]) -> None:
    """The split of a run that starts as is best for float32."""
    start = initial_assignment(platform, asked["stored"])
    hosts = [trainer.is_host for trainer in platform.trainers("graphsage")]

    def on_accelerators(assignment: Assignment) -> int:
        return sum(units for units, is_host in zip(assignment.split, hosts, strict=True) if not is_host)

    for rows, work in asked.items():
        best = initial_assignment(platform, work)
        run = simulate(
            platform, work, start=start, policy=policy("model"), iterations=STEPS, noise=NOISE, seed=1
        )
        at, last = run.assignments[AT], run.assignments[-1]

        def step_s(assignment: Assignment, work: TrainingWorkload = work) -> float:
            return simulate(platform, work, start=assignment, iterations=20).settled_iteration_s()

        print(
            f"| {name} | 1/{factor:g} | {rows} | {on_accelerators(start)} | {on_accelerators(at)} | "
            f"{on_accelerators(last)} | {on_accelerators(best)} | {step_s(start) / step_s(last):.2f} | "
            f"{step_s(best) / step_s(last):.2f} |",
            flush=True,
        )


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    asked.add_argument("--data", default="synthetic:products-s", help="a generated or published dataset")
    asked.add_argument("--links", nargs="+", type=float, default=[1, 4, 16], help="times slower")
    options = asked.parse_args()
    found = works(options.data)
    print("| platform | links | rows | ms a step | over float32 | bound by |")
    print("| --- | --- | --- | ---: | ---: | --- |")
    for name in PLATFORMS:
        for factor, platform in machines(name, found["stored"], options.links):
            alone(name, factor, platform, found)
    print(
        f"\n| platform | links | rows | targets on accelerators at first | after {AT} steps | after {STEPS} "
        f"| best | step, first / after {STEPS} | best / after {STEPS} |"
    )
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in PLATFORMS:
        for factor, platform in machines(name, found["stored"], options.links):
            together(name, factor, platform, found)


if __name__ == "__main__":
    main()
