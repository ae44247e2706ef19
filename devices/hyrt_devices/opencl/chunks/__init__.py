"""Full graphs in chunks: the device holds a few intervals of rows and the edges between two of them."""
