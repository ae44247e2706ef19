"""How fast things go that share cores, memory bandwidth and links."""

from __future__ import annotations

from collections.abc import Sequence


def shared_rates(demands: Sequence[Sequence[float]], capacities: Sequence[float]) -> list[float]:
    """The speed of each user, as a part of its speed alone.

    All slow down alike until a resource has enough for its users; users of other resources go on faster
    (max-min fairness of the slowdown, by progressive filling: Bertsekas and Gallager, "Data Networks",
    section 6.5.2). So what shares one resource gets parts in proportion to what it asks for, as threads do
    that share cores, and no resource that somebody waits for is left unused.

    Parameters
    ----------
    demands
        [users][resources], what each uses of each at full speed.
    capacities
        [resources].

    Returns
    -------
    [users], above 0 and at most 1.
    """
    rates = [1.0] * len(demands)
    free = set(range(len(demands)))
    left = list(capacities)
    reached = 0.0
    while free:
        level, scarce = 1.0, -1
        for resource, capacity in enumerate(left):
            wanted = sum(demands[user][resource] for user in free)
            if wanted * level > capacity:
                level, scarce = capacity / wanted, resource
        if scarce < 0:
            break
        # Levels only rise; where rounding says otherwise nothing would be left for a user.
        reached = level = max(level, reached)
        for user in [user for user in free if demands[user][scarce] > 0]:
            rates[user] = level
            free.discard(user)
            for resource, amount in enumerate(demands[user]):
                left[resource] = max(0.0, left[resource] - amount * level)
    return rates
