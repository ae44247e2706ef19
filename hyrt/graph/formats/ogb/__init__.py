"""What the ogb package puts on disk, file by file, and its datasets of several types."""
