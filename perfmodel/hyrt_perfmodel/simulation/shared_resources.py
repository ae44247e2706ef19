"""Rates of users that share cores, memory bandwidth and links."""

from __future__ import annotations

from collections.abc import Sequence


def shared_rates(demands: Sequence[Sequence[float]], capacities: Sequence[float]) -> list[float]:
    """Return the speed of each user relative to its speed alone.

    All users slow down by the same factor until a resource suffices for its users; users of other resources
    continue faster (max-min fairness of the slowdown, by progressive filling: Bertsekas and Gallager, "Data
    Networks", section 6.5.2). Users of one resource therefore get shares in proportion to their demands, as
    threads that share cores do, and no resource has idle capacity that a user could use.

    Parameters
    ----------
    demands
        [users][resources], demand of each user at full speed.
    capacities
        [resources].

    Returns
    -------
    [users], above 0 and at most 1.
    """
    rates = [1.0] * len(demands)
    free = set(range(len(demands)))
    remaining = list(capacities)
    last_level = 0.0
    while free:
        level, scarce = 1.0, -1
        for resource, capacity in enumerate(remaining):
            demand = sum(demands[user][resource] for user in free)
            if demand * level > capacity:
                level, scarce = capacity / demand, resource
        if scarce < 0:
            break
        # Levels increase monotonically; without this line, rounding could leave a user no capacity.
        last_level = level = max(level, last_level)
        for user in [user for user in free if demands[user][scarce] > 0]:
            rates[user] = level
            free.discard(user)
            for resource, amount in enumerate(demands[user]):
                remaining[resource] = max(0.0, remaining[resource] - amount * level)
    return rates
