"""Device backends that come with hyrt, each found through the entry-point group `hyrt.devices`."""
