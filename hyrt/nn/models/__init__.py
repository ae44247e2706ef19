"""Model kinds, one per file, found through the entry-point group `hyrt.models`."""
