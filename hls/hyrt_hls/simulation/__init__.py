"""Simulation of the kernels: the HLS C++ code, compiled with g++."""
