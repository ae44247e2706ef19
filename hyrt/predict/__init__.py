"""Prediction of run times before a run starts, and choice of its devices.

`dataset_sizes`, `block_sizes` and `workload` describe the work of a run; `this_run` and `any_machine` predict
its time; `choose_devices` implements `--devices auto`; `calibrate` measures this machine.
"""
