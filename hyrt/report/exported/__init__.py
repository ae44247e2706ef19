"""A trained model as files that need no hyrt."""
