"""Operators over blocks of torch tensors, for every torch device."""
