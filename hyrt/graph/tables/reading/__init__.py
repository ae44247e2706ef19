"""Batches of rows from CSV and Parquet files, with their line or row numbers."""
