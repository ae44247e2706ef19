"""Simulation of quantized features on the published platforms, with slow links between host and devices.

    python tools/bench/quantized_slow_links.py [--data synthetic:products-s] [--links 1 4 16]

The first table has predicted step times by format if accelerators train without the CPU, so that only their
links can be the bottleneck. In the second table, a run starts with the split and threads that are best for
float32 rows, but has rows of another format, and the policy `model` changes the split. It has the
accelerators' targets at the start, after 30 and 60 steps (after 30 steps, the policy may be exploring), and
in the best split. No times are measured: platforms are described and times are simulated.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

from hyrt_hls.arena_limits import with_task_targets
from hyrt_perfmodel.platform import Platform
from hyrt_perfmodel.platform_file import load_platform
from hyrt_perfmodel.policy import Assignment
from hyrt_perfmodel.prediction.initial_assignment import initial_assignment
from hyrt_perfmodel.prediction.predict import predict
from hyrt_perfmodel.prediction.simulate import simulate
from hyrt_perfmodel.workload import TrainingWorkload

from hyrt.balance.registry import create_policy
from hyrt.config import build_config
from hyrt.predict.workload import configured_workload

PLATFORMS = ("2x-epyc7763-4x-a5000", "2x-epyc7763-4x-u250")
FORMATS = ("stored", "float16", "int8")
STEPS, HALFWAY, NOISE = 60, 30, 0.03


def slowed_platforms(
    name: str, work: TrainingWorkload, links: list[float]
) -> Iterator[tuple[float, Platform]]:
    """Iterate over variants of a platform whose links are slower by each factor."""
    platform = load_platform(name)
    if any(accelerator.design is not None for accelerator in platform.accelerators):
        platform = with_task_targets(platform, work)
    for factor in links:
        slow = tuple(
            replace(accelerator, link_gb_s=accelerator.link_gb_s / factor)
            for accelerator in platform.accelerators
        )
        yield factor, replace(platform, accelerators=slow)


def workloads_by_format(data: str) -> dict[str, TrainingWorkload]:
    """Return the GraphSAGE workload by feature format."""
    sections = {"model": {"kind": "graphsage", "hidden": 256}}
    return {
        rows: configured_workload(build_config({**sections, "data": {"source": data, "rows": rows}}))
        for rows in FORMATS
    }


def print_alone(name: str, factor: float, platform: Platform, workloads: dict[str, TrainingWorkload]) -> None:
    """Print the predicted step time of the accelerators without the CPU."""
    platform = replace(platform, host=replace(platform.host, trains=False))
    predictions = {rows: predict(platform, work) for rows, work in workloads.items()}
    wide_s = predictions["stored"].iteration_s
    for rows, prediction in predictions.items():
        print(
            f"| {name} | 1/{factor:g} | {rows} | {1e3 * prediction.iteration_s:.3f} | "
            f"{wide_s / prediction.iteration_s:.2f} | {prediction.bottleneck} |",
            flush=True,
        )


def print_together(
    name: str, factor: float, platform: Platform, workloads: dict[str, TrainingWorkload]
) -> None:
    """Print how the split changes in a run that starts with the best split for float32."""
    start = initial_assignment(platform, workloads["stored"])
    hosts = [trainer.is_host for trainer in platform.trainers("graphsage")]

    def on_accelerators(assignment: Assignment) -> int:
        return sum(units for units, is_host in zip(assignment.split, hosts, strict=True) if not is_host)

    for rows, work in workloads.items():
        best = initial_assignment(platform, work)
        run = simulate(
            platform, work, start=start, policy=create_policy("model"), iterations=STEPS, noise=NOISE, seed=1
        )
        halfway, last = run.assignments[HALFWAY], run.assignments[-1]

        def step_s(assignment: Assignment, work: TrainingWorkload = work) -> float:
            return simulate(platform, work, start=assignment, iterations=20).settled_iteration_s()

        print(
            f"| {name} | 1/{factor:g} | {rows} | {on_accelerators(start)} | {on_accelerators(halfway)} | "
            f"{on_accelerators(last)} | {on_accelerators(best)} | {step_s(start) / step_s(last):.2f} | "
            f"{step_s(best) / step_s(last):.2f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default="synthetic:products-s", help="a generated or published dataset")
    parser.add_argument("--links", nargs="+", type=float, default=[1, 4, 16], help="slow-down factors")
    options = parser.parse_args()
    workloads = workloads_by_format(options.data)
    print("| platform | links | rows | ms per step | over float32 | bound by |")
    print("| --- | --- | --- | ---: | ---: | --- |")
    for name in PLATFORMS:
        for factor, platform in slowed_platforms(name, workloads["stored"], options.links):
            print_alone(name, factor, platform, workloads)
    print(
        f"\n| platform | links | rows | targets on accelerators at first | after {HALFWAY} steps "
        f"| after {STEPS} | best | step, first / after {STEPS} | best / after {STEPS} |"
    )
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in PLATFORMS:
        for factor, platform in slowed_platforms(name, workloads["stored"], options.links):
            print_together(name, factor, platform, workloads)


if __name__ == "__main__":
    main()
