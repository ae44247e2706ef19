"""Clock cycles of the FPGA trainer: closed forms fitted to cycle simulations."""
