"""Rows of CSV and Parquet files, piece by piece, with the place of each of them."""
