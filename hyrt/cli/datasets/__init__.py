"""Commands that create, inspect and partition datasets."""
