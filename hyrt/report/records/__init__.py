"""What a run leaves on the disk, and the way back from there."""
