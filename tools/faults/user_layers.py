"""Layers of tests/saga_layers.py as a model kind of an installed package: model.kind=user-layers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hyrt.nn.models.model_kind import ModelKind

if TYPE_CHECKING:
    from hyrt.nn.architecture import Architecture
    from hyrt.nn.layer import Layer

TOOLS = Path(__file__).resolve().parent
TESTS = TOOLS.parents[1] / "tests"


class UserLayers(ModelKind):
    """User-defined layers; option `form` is a key of `saga_layers.REFERENCES`."""

    costs_like = "gcn"

    def layer(
        self,
        architecture: Architecture,
        in_features: int,
        out_features: int,
        *,
        last: bool,
        form: str = "EdgeConv",
    ) -> Layer:
        from saga_layers import REFERENCES

        return REFERENCES[form].layer(in_features, out_features)


def install_user_layers(folder: Path) -> dict[str, str]:
    """Declare the model kind in a folder; return the environment of processes that can load it."""
    info = folder / "user_layers-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: user-layers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hyrt.models]\nuser-layers = user_layers:UserLayers\n")
    places = [str(folder), str(TOOLS), str(TESTS), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, places))}
