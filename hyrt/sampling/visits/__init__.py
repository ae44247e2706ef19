"""How often the feature row of each vertex is read, before anything is trained."""
