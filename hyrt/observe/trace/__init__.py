"""What every thread and device queue did and when, as a file for ui.perfetto.dev."""
