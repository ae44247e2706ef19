"""Display, records, reports and export of runs."""
