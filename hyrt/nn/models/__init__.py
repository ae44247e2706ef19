"""The kinds of models, one file a kind, found through the entry-point group `hyrt.models`."""
