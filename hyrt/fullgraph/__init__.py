"""Full-graph training: exact steps over all vertices, computed in chunks of rows."""
