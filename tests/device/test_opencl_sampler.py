"""Neighbours drawn by an OpenCL device equal the host's, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import random_graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hyrt_devices.opencl import OpenclDevice
from opencl_steps import PRODUCTS, opened
from unit.sampling.small_graphs import graph_of, graphs

from hyrt.errors import DeviceFaultError
from hyrt.runtime.rng import SAMPLE, stream_key
from hyrt.sampling.kernels import FLOYD_LIMIT
from hyrt.testing.check_capabilities import sample_hop_on_host

pytestmark = pytest.mark.skipif(not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device")


@pytest.fixture(scope="module", params=PRODUCTS)
def device(request: pytest.FixtureRequest):
    device = opened(request.param)
    yield device
    device.close()


def assert_equal_draws(device: Any, graph: Any, vertices: Any, fanout: int, seed: int) -> None:
    key = stream_key(seed, SAMPLE, 4, 1)
    sampler = device.sampler(graph)
    hop = sampler.draw(vertices, fanout, key, relabel=False)
    wanted = sample_hop_on_host(graph, vertices, fanout, key)
    for part in ("degrees", "offsets", "neighbors"):
        mine, host = getattr(hop, part), getattr(wanted, part)
        assert mine.dtype == host.dtype
        np.testing.assert_array_equal(mine, host)
    sampler.close()
    sampler.close()


@given(
    graph=graphs(),
    fanout=st.sampled_from([-1, 1, 2, 7, 63, 64, 65, 100]),
    wide=st.booleans(),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_graph(device: OpenclDevice, graph: Any, fanout: int, wide: bool, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(graph.num_vertices)
    vertices = order[: seed % (graph.num_vertices + 1)].astype(np.int64 if wide else np.int32)
    assert_equal_draws(device, graph, vertices, fanout, seed)


@pytest.mark.parametrize("fanout", [FLOYD_LIMIT - 1, FLOYD_LIMIT, FLOYD_LIMIT + 1, 149])
def test_hubs_are_drawn_by_the_same_algorithm(device: OpenclDevice, fanout: int) -> None:
    graph = graph_of([[*range(150)], [*range(50, 120)], *[[0]] * 148])
    assert_equal_draws(device, graph, np.arange(150, dtype=np.int32), fanout, 5)


def test_no_vertices_and_no_edges(device: OpenclDevice) -> None:
    assert_equal_draws(device, random_graph(), np.array([], np.int32), 3, 0)
    assert_equal_draws(device, graph_of([[], [], []]), np.array([2, 0], np.int32), 3, 0)


def test_two_samplers_and_a_closed_device() -> None:
    device = opened()
    first, second = random_graph(seed=1), random_graph(seed=2)
    samplers = [device.sampler(first), device.sampler(second)]
    vertices = np.arange(200, dtype=np.int32)
    key = stream_key(3, SAMPLE, 0, 2)
    for sampler, graph in zip(samplers, (first, second), strict=True):
        assert sampler is not None
        found = sampler.draw(vertices, 5, key, relabel=True)
        np.testing.assert_array_equal(found.neighbors, sample_hop_on_host(graph, vertices, 5, key).neighbors)
    device.close()
    with pytest.raises(DeviceFaultError, match="used after it was closed"):
        device.sampler(first)


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_topology_that_does_not_fit_is_no_fault(product: str) -> None:
    device = opened(product, memory_bytes=60_000)
    if not device.info.zero_copy:
        assert device.sampler(random_graph(vertices=3000, degree=8)) is None
    small = random_graph(vertices=100)
    sampler = device.sampler(small)
    assert sampler is not None
    sampler.draw(np.arange(50, dtype=np.int32), 3, stream_key(0, SAMPLE, 0, 1), relabel=False)
    device.close()
