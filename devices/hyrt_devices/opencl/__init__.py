"""OpenCL backend: hyrt's GNN kernels on CPUs (PoCL), GPUs of any vendor and, from binaries, FPGAs."""

from hyrt_devices.opencl.device import OpenclDevice

__all__ = ["OpenclDevice"]
