"""How long a run will take, before it starts, and which devices it should use.

`dataset_sizes`, `block_sizes` and `workload` say what a run asks of a machine; `this_run` and `any_machine`
predict it; `choose_devices` is `--devices auto`; `calibrate` measures this machine.
"""
