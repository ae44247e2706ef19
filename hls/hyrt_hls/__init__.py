"""Home of the FPGA trainer's kernels; empty in this release."""
