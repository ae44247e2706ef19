"""Rows of vertices without features: tables of which a step changes few rows."""
