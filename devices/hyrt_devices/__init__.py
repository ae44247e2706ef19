"""Device backends of hyrt, registered in the entry-point group `hyrt.devices`."""
