"""Kinds of models for typed graphs."""
