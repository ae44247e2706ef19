"""Graphs of several vertex types and relations: their types, feature rows, and how they are put together."""
