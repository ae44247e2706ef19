"""What a run is handed: its prediction, and its part among several processes."""
