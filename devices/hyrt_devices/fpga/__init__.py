"""FPGA trainers: cards driven through XRT (`fpga`), and the same kernels in simulation (`fpga-csim`)."""
