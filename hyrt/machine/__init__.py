"""What every floor stands on: worker threads, recycled memory, CPUs, process settings, files, generator."""
