"""Runtime services that do not depend on graphs: threads, channels, buffer pools, processes, files."""
