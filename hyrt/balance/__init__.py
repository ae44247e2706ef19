"""The resource manager and its policies: who trains how much, and with how many threads."""
