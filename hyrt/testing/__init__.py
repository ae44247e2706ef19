"""What a backend's author needs: the conformance suite of the device protocol, for any test runner or none.

from hyrt.testing import check_device
print(check_device(lambda options: MyDevice.open(MyDevice.probe()[0], options)))
"""

from __future__ import annotations

from hyrt.testing.findings import ConformanceError, Finding, Report
from hyrt.testing.suite import check_device

__all__ = ["ConformanceError", "Finding", "Report", "check_device"]
