"""Terminal output: progress of a run, and wrapped lines of text."""
