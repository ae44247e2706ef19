"""Telemetry of a run: events, traces, and hooks that observe a run or inject faults into it."""
