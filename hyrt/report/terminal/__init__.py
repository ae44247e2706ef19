"""What a terminal shows: the progress of a run, and lines of text."""
