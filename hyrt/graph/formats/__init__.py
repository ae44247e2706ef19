"""The forms a dataset is kept in: `.npz` files, folders of `.npy` files, OGB's layout, PyG objects."""
