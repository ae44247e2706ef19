"""OpenCL backend: hyrt's GNN kernels on CPUs (PoCL), on GPUs of any vendor, and from binaries on FPGAs."""

from hyrt_devices.opencl.device import OpenclDevice

__all__ = ["OpenclDevice"]
