"""Halo exchange of rows and their gradients: only the needed rows, or all rows."""
