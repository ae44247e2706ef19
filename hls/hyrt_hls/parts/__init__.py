"""FPGA parts and the resources that a trainer needs on them."""
