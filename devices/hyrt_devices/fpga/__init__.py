"""FPGA trainers: cards through XRT (`fpga`), and the same kernels in simulation (`fpga-csim`)."""
