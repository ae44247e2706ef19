"""Torch devices with separate memory: CUDA (with hyrt's kernels), XPU and MPS (with torch operators only)."""
