"""The built-in layers that are written as a user's own, by their papers' formulas for all pairs of vertices.

Each is given the parameters, the rows of destinations [n, f] and of sources [m, f], and how many edges there
are of each pair [n, m].
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

Parameters = Mapping[str, Tensor]


def gated(p: Parameters, own: Tensor, x: Tensor, counts: Tensor) -> Tensor:
    to, come = (
        own @ p["gate_destination.weight"].T + p["gate_destination.bias"],
        x @ p["gate_source.weight"].T,
    )
    gates = 1 / (1 + torch.exp(-(to[:, None] + come[None])))
    gathered = (counts[:, :, None] * gates * (x @ p["message.weight"].T)[None]).sum(1)
    return own @ p["own.weight"].T + p["own.bias"] + gathered


def commnet(p: Parameters, own: Tensor, x: Tensor, counts: Tensor) -> Tensor:
    mean = counts @ x / counts.sum(1, keepdim=True).clamp(min=1)
    return own @ p["own.weight"].T + p["own.bias"] + mean @ p["communication.weight"].T


def _film(p: Parameters, name: str, own: Tensor, x: Tensor, bare: bool) -> Tensor:
    """[n, m, out] what each source would give each destination."""
    scale, shift = (own @ p[f"{name}.{a}.weight"].T + p[f"{name}.{a}.bias"] for a in ("scale", "shift"))
    message = scale[:, None] * (x @ p[f"{name}.message.weight"].T)[None] + shift[:, None]
    return message if bare else message.relu()


def film(p: Parameters, own: Tensor, x: Tensor, counts: Tensor, bare: bool = False) -> Tensor:
    gathered = (counts[:, :, None] * _film(p, "films.0", own, x, bare)).sum(1)
    each = torch.arange(len(own))
    return gathered + _film(p, "own", own, own, bare)[each, each]


def film_scores(p: Parameters, own: Tensor, x: Tensor, counts: Tensor) -> Tensor:
    return film(p, own, x, counts, bare=True)


def recurrent(p: Parameters, own: Tensor, x: Tensor, counts: Tensor) -> Tensor:
    a = counts @ (x @ p["messages.0.weight"].T + p["messages.0.bias"])
    h = own @ p["state.weight"].T + p["state.bias"] if "state.weight" in p else own
    given = (a @ p["unit.weight_ih"].T + p["unit.bias_ih"]).chunk(3, 1)
    known = (h @ p["unit.weight_hh"].T + p["unit.bias_hh"]).chunk(3, 1)
    reset, update = (torch.sigmoid(given[k] + known[k]) for k in range(2))
    new = torch.tanh(given[2] + reset * known[2])
    state = (1 - update) * new + update * h
    return state @ p["scores.weight"].T + p["scores.bias"] if "scores.weight" in p else state
