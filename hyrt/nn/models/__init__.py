"""Model kinds, one per file, which are found through the entry-point group `hyrt.models`."""
