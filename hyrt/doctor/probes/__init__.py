"""Probes: code that runs in an isolated worker process, where it may import, open and crash anything.

A probe is called once per item as `(item, report, **arguments)`. The arguments of `report` must be
JSON-serializable and are sent to the parent process.
"""
