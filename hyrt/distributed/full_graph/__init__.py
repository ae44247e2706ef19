"""Full-graph training on several ranks: each has a block of rows, and gathers along the edges into them."""
