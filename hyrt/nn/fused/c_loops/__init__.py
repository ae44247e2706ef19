"""C code generation of loops over edges, for OpenCL and CUDA."""
