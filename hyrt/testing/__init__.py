"""Conformance suite of the device protocol, which authors of backends can run with or without a test runner.

from hyrt.testing import check_device
print(check_device(lambda options: MyDevice.open(MyDevice.probe()[0], options)))
"""

from __future__ import annotations

from hyrt.testing.suite import check_device
from hyrt.testing.trial import ConformanceError, Report, Verdict

__all__ = ["ConformanceError", "Report", "Verdict", "check_device"]
