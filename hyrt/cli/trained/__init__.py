"""Commands that apply or write what a run has learned."""
