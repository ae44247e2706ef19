"""Loops over edges in C: printed for OpenCL and CUDA, and run over tensors of a device."""
