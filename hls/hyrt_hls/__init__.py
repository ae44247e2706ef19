"""FPGA trainer: HLS kernels and their simulation, tasks, designs and what they take of a part, files for a build."""
