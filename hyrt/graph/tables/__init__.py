"""Tables of edges and of vertices, in CSV and Parquet files, made into a dataset."""
