"""User-defined layers over sampled blocks."""
