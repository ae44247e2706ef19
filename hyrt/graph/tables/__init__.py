"""Import of datasets from CSV and Parquet tables of edges and vertices."""
