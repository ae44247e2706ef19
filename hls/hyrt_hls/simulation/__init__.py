"""The kernels compiled with g++ and run as they are."""
