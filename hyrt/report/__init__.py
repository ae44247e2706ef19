"""What a run shows and leaves behind: display, run folder, pages."""
