"""Conversion of events to logged metrics."""

from __future__ import annotations

from collections.abc import Iterator

from hyrt.observe.events import Balanced, EpochEnded, Evaluated, Event, StepGroup


def logged_metrics(event: Event) -> Iterator[tuple[str, float]]:
    """Yield names and values of an event's metrics; loggers group metrics by the prefix before the slash."""
    match event:
        case StepGroup():
            yield "train/loss", event.loss
            for name, value in event.training_metrics.items():
                yield f"train/{name}", value
            yield "train/lr", event.lr
            yield "speed/mteps", event.mteps
            yield "speed/step_s", event.step_s
            yield "memory/resident_bytes", float(event.memory_bytes)
            for group, values in (
                ("stage_s", event.stage_s),
                ("waiting_s", event.blocked_s),
                ("queued", event.queued),
                ("busy_s", event.busy_s),
                ("split", event.split),
                ("threads", event.threads),
            ):
                for name, value in values.items():
                    # Not all loggers accept a colon in a name.
                    yield f"{group}/{name.replace(':', '_')}", float(value)
        case Evaluated():
            for split, metrics in event.metrics.items():
                for name, value in metrics.items():
                    yield f"{split}/{name}", value
        case EpochEnded():
            yield "epoch/seconds", event.seconds
            yield "epoch/loss", event.loss
            if event.predicted_s is not None:
                yield "epoch/predicted_s", event.predicted_s
        case Balanced() if event.expected_s is not None:
            yield "balance/expected_s", event.expected_s
