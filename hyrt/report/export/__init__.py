"""Export of a trained model as files that do not require hyrt."""
