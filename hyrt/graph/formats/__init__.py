"""Dataset formats: `.npz` files, folders of `.npy` files, OGB's folder layout, and PyG and DGL objects."""
