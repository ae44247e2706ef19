"""Resource manager and its policies, which distribute targets and threads."""
