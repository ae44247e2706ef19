"""Ids of vertices as tables have them, and the numbers that vertices get."""
