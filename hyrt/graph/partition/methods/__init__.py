"""The methods that decide which vertex belongs to which part: one file a method."""
