"""Link prediction: decoders, objective and metrics."""
