"""Checks of what is installed: packages, backends and drivers, and what hyrt keeps in cache folders."""
