"""A child process that is asked about what may crash or hang: its two ends, and when it hangs."""
