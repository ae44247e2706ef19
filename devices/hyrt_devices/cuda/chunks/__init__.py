"""Full graphs in chunks on torch devices, with torch operators over memory that is allocated once."""
