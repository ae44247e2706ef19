"""Commands that apply or export a trained model."""
