"""Torch devices with memory of their own: CUDA GPUs with kernels of ours, and XPU and MPS through torch alone."""
