"""Parts of a graph on disk: which vertex belongs to which part, writing them, opening one or all of them."""
