"""How many clock cycles the FPGA trainer takes: cycle simulations, and closed forms fitted to them."""
