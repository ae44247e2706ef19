"""Prediction of run times before a run starts, and choice of its devices.

Workloads are derived from settings and datasets; runs are predicted on this machine, from its calibration,
and on other platforms. `--devices auto` and `data.feature_dtype=auto` choose by prediction.
"""
