"""The FPGA trainer: HLS kernels and their simulation, tasks, designs and parts, files for a build."""
