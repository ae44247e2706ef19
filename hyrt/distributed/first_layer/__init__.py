"""First layers that ranks compute together: each its columns, or each what it has of the rows."""
