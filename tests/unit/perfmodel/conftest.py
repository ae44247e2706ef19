"""The tools that count a graph's degrees, on the path: expected sizes are compared with what they find."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "tools" / "predictions"))
