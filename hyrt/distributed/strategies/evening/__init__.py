"""Giving ranks equally many roots where homes do not, at the least cost in remote rows."""
