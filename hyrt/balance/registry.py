"""Registry of policies by name, and the policy that never changes the assignment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from hyrt_perfmodel.policy import Assignment, AssignmentLimits, Decision, Observation, Policy
from hyrt_perfmodel.suggestions import nearest_name

from hyrt.balance.bottleneck_policy import BottleneckPolicy
from hyrt.balance.model_policy import ModelPolicy


class StaticPolicy:
    """Policy that never changes the assignment."""

    name = "static"
    description = "keeps the initial split and threads"

    def decide(
        self, history: Sequence[Observation], present: Assignment, limits: AssignmentLimits
    ) -> Decision:
        return Decision(assignment=present)


POLICIES: Mapping[str, Callable[[], Policy]] = MappingProxyType(
    {"static": StaticPolicy, "bottleneck": BottleneckPolicy, "model": ModelPolicy}
)
"""Factory of each policy, by name."""

DEFAULT_POLICY = "model"
"""Default policy, which won the comparison of tools/policies/compare.py."""


def create_policy(name: str) -> Policy:
    """Create a policy by name. Raises ValueError for an unknown name."""
    if name not in POLICIES:
        near = nearest_name(name, POLICIES)
        hint = f"did you mean {near!r}?" if near else f"choose one of {', '.join(POLICIES)}"
        raise ValueError(f"unknown policy {name!r}: {hint}")
    return POLICIES[name]()
