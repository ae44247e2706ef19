"""Feature rows on the device: those it gathers itself, those in narrow formats, those it keeps for a run."""
