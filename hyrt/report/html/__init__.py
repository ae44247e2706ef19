"""HTML reports of single runs, and comparisons of several runs."""
