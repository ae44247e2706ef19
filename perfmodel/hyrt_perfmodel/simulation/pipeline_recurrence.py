"""Recurrence for the pipeline without shared resources: stage end times follow from earlier end times."""

from __future__ import annotations

from collections import deque

from hyrt_perfmodel.simulation.simulated_step import Begin, End


def run_recurrence(num_steps: int, num_trainers: int, depth: int, begin: Begin, end: End) -> None:
    """Run steps through the pipeline one after the other (a max-plus recurrence over steps).

    Parameters
    ----------
    num_steps, num_trainers
        Number of steps and of trainers.
    depth
        Maximum number of steps in flight.
    begin, end
        Callbacks for sampled and for synchronized steps. `end` of step i is called before `begin` of step i +
        depth.
    """
    sampled_s = loaded_s = 0.0
    transferred_s = [0.0] * num_trainers
    done_s = deque([0.0] * depth, maxlen=depth)
    for number in range(num_steps):
        step = begin(number)
        sampled_s = max(sampled_s, done_s[0])
        step.started_s = sampled_s
        weights_s = done_s[-1]
        last_s = weights_s
        for trainer, (sample_s, load_s, transfer_s, propagate_s) in enumerate(
            zip(step.sample_s, step.load_s, step.transfer_s, step.propagate_s, strict=True)
        ):
            sampled_s += sample_s
            loaded_s = max(sampled_s, loaded_s) + load_s
            staged_s = max(loaded_s, transferred_s[trainer]) + transfer_s
            transferred_s[trainer] = staged_s
            last_s = max(last_s, max(staged_s, weights_s) + propagate_s)
        step.done_s = last_s + step.synchronize_s
        done_s.append(step.done_s)
        end(step)
