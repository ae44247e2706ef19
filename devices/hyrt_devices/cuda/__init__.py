"""Torch devices with memory of their own: CUDA with kernels of ours; XPU and MPS through torch alone."""
