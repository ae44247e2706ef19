"""A child process that is asked about what may crash or hang, and what is said if it cannot be."""
