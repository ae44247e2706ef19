"""Checks of `hyrt doctor`: hardware, system limits, installed software, and the settings of a run.

Packages under test are imported only in an isolated worker process, by the code in `probes`.
"""
