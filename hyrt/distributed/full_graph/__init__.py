"""Distributed full-graph training: each rank owns a block of rows and gathers over its incoming edges."""
