"""Feature cache of a device."""
