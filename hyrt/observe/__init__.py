"""What a run tells of itself, and what is hung into it to watch or to test it."""
