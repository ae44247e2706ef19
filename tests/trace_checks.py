"""What a trace viewer needs of a trace, checked without any of the code that writes it."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Track = tuple[int, int]


class Trace:
    """A file's events, with times in whole nanoseconds."""

    def __init__(self, data: bytes) -> None:
        # Floats would round what is compared here.
        whole = json.loads(data, parse_float=Decimal)
        self.about: dict[str, Any] = whole["otherData"]
        self.events: list[Event] = whole["traceEvents"]
        for event in self.events:
            for key in ("ts", "dur"):
                if key in event:
                    ns = event[key] * 1000
                    assert ns == int(ns), f"{event}: finer than a nanosecond"
                    event[key] = int(ns)
        self.slices = [event for event in self.events if event["ph"] == "X"]
        self.threads: dict[Track, str] = {
            (e["pid"], e["tid"]): e["args"]["name"] for e in self.events if e["name"] == "thread_name"
        }
        self.processes: dict[int, str] = {
            e["pid"]: e["args"]["name"] for e in self.events if e["name"] == "process_name"
        }

    @classmethod
    def read(cls, path: Path) -> Trace:
        return cls(gzip.decompress(path.read_bytes()))

    def of(self, thread: str, name: str | None = None) -> list[Event]:
        """A thread's slices in the order of their starts."""
        found = [
            e
            for e in self.slices
            if self.threads[e["pid"], e["tid"]] == thread and (name is None or e["name"] == name)
        ]
        return sorted(found, key=lambda e: e["ts"])

    def counter(self, name: str) -> list[tuple[int, Any]]:
        """Times and values."""
        found = [e for e in self.events if e["ph"] == "C" and e["name"] == name]
        assert all(len(e["args"]) == 1 for e in found)
        return sorted((e["ts"], *e["args"].values()) for e in found)

    def ways(self) -> list[list[Event]]:
        """Of each flow the slices that it binds to, in order."""
        arrows = defaultdict(list)
        for event in self.events:
            if event["ph"] in "stf":
                arrows[event["id"]].append(event)
        return [[self._bound(arrow) for arrow in way] for way in arrows.values()]

    def _bound(self, arrow: Event) -> Event:
        inside = [
            e
            for e in self._by_track()[arrow["pid"], arrow["tid"]]
            if e["ts"] <= arrow["ts"] < e["ts"] + e["dur"]
        ]
        assert inside, f"{arrow}: no slice is there"
        return max(inside, key=lambda e: e["ts"])

    def _by_track(self) -> dict[Track, list[Event]]:
        tracks = defaultdict(list)
        for event in self.slices:
            tracks[event["pid"], event["tid"]].append(event)
        return tracks

    def assert_is_whole(self) -> None:
        """Slices of a track nest or are disjoint, tracks have names, arrows join slices and go forward."""
        for track, slices in self._by_track().items():
            assert track in self.threads
            assert track[0] in self.processes
            open_ends: list[int] = []
            for event in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
                start, end = event["ts"], event["ts"] + event["dur"]
                assert end >= start
                while open_ends and open_ends[-1] <= start:
                    open_ends.pop()
                assert not open_ends or end <= open_ends[-1], f"{self.threads[track]}: {event} overlaps"
                open_ends.append(end)
        arrows = defaultdict(list)
        for event in self.events:
            if event["ph"] in "stf":
                arrows[event["id"]].append(event)
        for way in arrows.values():
            kinds = "".join(e["ph"] for e in way)
            assert kinds == "s" + "t" * (len(way) - 2) + "f"
            assert way[-1]["bp"] == "e"
            assert [e["ts"] for e in way] == sorted(e["ts"] for e in way)
