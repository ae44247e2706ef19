"""Models whose rows are scored in pairs."""
