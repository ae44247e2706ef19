"""What every floor stands on: threads that share work, recycled memory, CPUs, process settings, files, the generator."""
