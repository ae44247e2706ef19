"""Feature caches that devices keep for a whole run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.config import Config
from hyrt.device.calls import call_device
from hyrt.device.capabilities import FeatureCacheDevice
from hyrt.errors import ConfigError, DeviceFaultError, DeviceOutOfMemoryError, UnsupportedModelError
from hyrt.formatting import format_bytes
from hyrt.graph.feature_cache import CacheIndex, Rows, invert_ranking
from hyrt.graph.graph import Graph
from hyrt.graph.quantized.rows import QuantizedRows
from hyrt.graph.row_source import QuantizedRowSource
from hyrt.pipeline.trainer import Trainer
from hyrt.runtime.workers import Workers
from hyrt.sampling.hotness import HotnessRanking, rank_by_hotness
from hyrt.telemetry.events import Notice
from hyrt.telemetry.hooks import Hook
from hyrt.training.setup import PreparedRun

# Approximate size of the pieces in which rows are copied to a device, in bytes.
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class DeviceCache:
    """Feature cache of one device."""

    places: CacheIndex
    row_bytes: int
    predicted_hit_rate: float

    def figures(self) -> dict[str, float]:
        lookups = self.places.lookups
        return {
            "rows": self.places.count,
            "bytes": self.places.count * self.row_bytes,
            "hit_rate": self.places.hits / lookups if lookups else 0.0,
            "predicted_hit_rate": self.predicted_hit_rate,
        }


class DeviceCaches(Hook):
    """Feature caches of the devices in a run, with their hit rates.

    `data.cache` is the cache size per device.
    """

    def __init__(self, config: Config, prepared: PreparedRun) -> None:
        self._config = config
        self._prepared = prepared
        self._caches: dict[str, DeviceCache] = {}

    def fill(self, trainers: Sequence[Trainer], split: Sequence[int], workers: Workers) -> None:
        """Fill each device's feature cache with the rows of highest expected use, and set its input plan.

        `split` has the units of a step per trainer. Raises ConfigError if no device supports feature caches
        and the size is not `auto`, or if the size is less than one row, and DeviceOutOfMemoryError with the
        remedy if the rows do not fit in device memory.
        """
        chosen = [number for number, trainer in enumerate(trainers) if self._keeps(trainer)]
        if not chosen:
            if self._config.data.cache == "auto":
                return
            reasons = ", ".join(f"{each.name} {_reason(each)}" for each in trainers)
            raise ConfigError(
                "data.cache has no effect, because no device in this run can cache feature rows "
                f"({reasons}): remove data.cache"
            )
        part = sum(split[number] for number in chosen) / len(chosen) / max(1, sum(split))
        ranking = self.ranking(part, workers)
        ranks = invert_ranking(ranking.vertices, self._prepared.graph.num_vertices)
        for number in chosen:
            self._fill(trainers[number], ranking, ranks, workers)

    def ranking(self, part: float, workers: Workers) -> HotnessRanking:
        """Rank rows by the expected number of steps in which a trainer with this part reads them."""
        config, prepared = self._config, self._prepared
        return rank_by_hotness(
            config.sampler,
            prepared.sampler,
            prepared.graph.topology,
            prepared.targets,
            config.data.batch_size,
            config.fanouts,
            part or 1.0,
            workers,
        )

    def _keeps(self, trainer: Trainer) -> bool:
        can = isinstance(trainer.device, FeatureCacheDevice) and "cached" in trainer.device.info.forms
        # Devices that read host memory in place gain little from a cache.
        is_useful = self._config.data.cache != "auto" or not trainer.device.info.zero_copy
        return can and is_useful and trainer.plan.form in ("rows", "quantized")

    def _fill(
        self, trainer: Trainer, ranking: HotnessRanking, ranks: NDArray[np.int32], workers: Workers
    ) -> None:
        graph, budget, device = self._prepared.graph, self._config.data.cache, trainer.device
        assert isinstance(device, FeatureCacheDevice)
        row_bytes = _row_bytes(trainer, graph)
        if budget == "auto":
            capacity = device.free_bytes // 2 // row_bytes
        elif isinstance(budget, float):
            capacity = int(budget * graph.num_vertices)
        else:
            assert budget is not None
            capacity = int(budget) // row_bytes
        count = min(capacity, len(ranking.vertices))
        if not count:
            if budget == "auto":
                return
            raise ConfigError(
                f"data.cache={budget} is less than a single row of {format_bytes(row_bytes)}: raise "
                "data.cache"
            )
        pieces = self._pieces(ranking.vertices[:count], row_bytes, trainer.plan.form == "quantized", workers)
        keep = partial(device.keep_rows, count, pieces)
        try:
            call_device(
                trainer.name,
                "keep_rows",
                keep,
                timeout_s=self._config.runtime.stall_timeout_s,
                fault=DeviceFaultError,
            )
        except DeviceOutOfMemoryError as error:
            raise DeviceOutOfMemoryError(
                f"{error}: data.cache stores {count:,} rows of {format_bytes(row_bytes)} there. Lower "
                "data.cache, or set data.cache=auto"
            ) from error
        except UnsupportedModelError:
            if budget == "auto":
                return
            raise
        places = CacheIndex(ranks, count)
        trainer.plan = replace(
            trainer.plan, form="cached", places=places, sends_quantized=trainer.plan.form == "quantized"
        )
        self._caches[trainer.name] = DeviceCache(places, row_bytes, ranking.hit_rate(count))

    def _pieces(
        self, vertices: NDArray[Any], row_bytes: int, quantized: bool, workers: Workers
    ) -> Iterator[Rows]:
        source = self._prepared.graph.features
        per_piece = max(1, _PIECE_BYTES // row_bytes)
        for start in range(0, len(vertices), per_piece):
            ids = vertices[start : start + per_piece]
            if quantized:
                assert isinstance(source, QuantizedRowSource)
                rows = QuantizedRows.allocate(
                    source.row_format, (len(ids), source.width), source.column_scales
                )
                source.quantized_rows(ids, rows, workers)
                yield rows
            else:
                out = np.empty((len(ids), source.width), np.float32)
                source.rows(ids, out, workers)
                yield out

    def hit_rates(self) -> Mapping[str, float]:
        return {
            name: cache.figures()["hit_rate"] for name, cache in self._caches.items() if cache.places.lookups
        }

    def on_start(self, devices: Sequence[Any], steps: range) -> Notice | None:
        """Return a notice about the contents of the feature caches."""
        texts = [
            f"{name} caches {cache.places.count:,} rows "
            f"({format_bytes(cache.places.count * cache.row_bytes)}), with an expected hit rate of "
            f"{cache.predicted_hit_rate:.1%}"
            for name, cache in self._caches.items()
        ]
        if not texts:
            texts = [
                "data.cache=auto has no effect, because no device in this run has its own memory for "
                "feature rows"
            ]
        return Notice(kind="info", text="; ".join(texts))

    def on_end(self, summary: dict[str, Any]) -> Notice | None:
        """Add the rows, the bytes and the hit rates to the summary."""
        if not self._caches:
            return None
        caches = summary["device_caches"] = {name: cache.figures() for name, cache in self._caches.items()}
        texts = [
            f"{name} found {figures['hit_rate']:.1%} of its rows in its cache "
            f"({figures['predicted_hit_rate']:.1%} predicted)"
            if self._caches[name].places.lookups
            else f"{name} did not use its cache, because it had no work in any step"
            for name, figures in caches.items()
        ]
        return Notice(kind="info", text="; ".join(texts))


def _row_bytes(trainer: Trainer, graph: Graph) -> int:
    source = graph.features
    if trainer.plan.form == "quantized":
        assert isinstance(source, QuantizedRowSource)
        return source.row_format.row_bytes(source.width)
    return 4 * source.width


def _reason(trainer: Trainer) -> str:
    if trainer.plan.form == "aggregated" and isinstance(trainer.device, FeatureCacheDevice):
        return "receives aggregates instead of rows unless runtime.fuse_load is false"
    if trainer.plan.form in ("in_place", "aggregated", "ids"):
        return "receives no rows"
    if trainer.plan.form == "sparse":
        return "receives sparse rows"
    return "does not support caching"
