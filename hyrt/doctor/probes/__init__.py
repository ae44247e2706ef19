"""Probes: code that runs in an isolated worker process, where it may import, open and crash anything.

A probe is a function `(item, report, **arguments)`, called once per item; its default name is
`answer`. Whatever it passes to `report` must be JSON-serializable and is sent to the parent process.
"""
