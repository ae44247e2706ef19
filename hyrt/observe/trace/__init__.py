"""Timeline of every thread and device queue, as a file for ui.perfetto.dev."""
