"""Gathers of a layer over blocks of tensors, on any torch device."""
