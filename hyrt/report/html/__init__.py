"""HTML reports of one run, and comparisons of several runs."""
