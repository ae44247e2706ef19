"""FPGA cards, and what a trainer takes of them."""
