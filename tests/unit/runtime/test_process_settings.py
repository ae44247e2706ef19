"""torch's compiler, which no run needs, is imported only where something of it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hyrt.runtime.process_setup import _LazyCompiler

_STEP = """
import sys
import torch
from hyrt.runtime.process_setup import prepare_process

prepare_process()


def trained():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
        schedule.step()
    optimizer.load_state_dict(optimizer.state_dict())


trained()
loaded = [name for name in sys.modules if name.startswith("torch._dynamo.")]
assert not loaded, loaded
"""


def test_optimizers_work_without_the_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", _STEP], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_used_of_the_compiler_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    # In its place a module that is as good, and loaded at once.
    stand_in = _LazyCompiler("colorsys")
    monkeypatch.setitem(sys.modules, "colorsys", stand_in)
    import colorsys

    assert colorsys is stand_in
    assert not hasattr(stand_in, "__file__")
    assert stand_in.disable(len) is len
    assert sys.modules["colorsys"] is stand_in
    assert colorsys.rgb_to_hsv(0, 0, 1) == (2 / 3, 1, 1)
    assert sys.modules["colorsys"] is not stand_in
    assert colorsys.hsv_to_rgb(2 / 3, 1, 1)[2] == 1
