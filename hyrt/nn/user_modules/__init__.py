"""User-defined modules: stacks of PyG and DGL convolutions, output checks and explained errors."""
