"""Dataset formats: `.npz` files, folders of `.npy` files, OGB folders, and PyG and DGL objects."""
