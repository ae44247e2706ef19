"""FPGA trainers: cards driven through XRT (`fpga`), and a simulation of the same kernels (`fpga-csim`)."""
