"""What edges have besides their ends."""
