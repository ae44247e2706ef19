"""FPGA trainer: HLS kernels and their simulation, task layout, design space exploration and Vitis builds."""
