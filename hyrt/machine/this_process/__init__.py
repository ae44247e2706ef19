"""Setup, signals, fork safety and exit of the current process."""
