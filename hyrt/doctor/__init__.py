"""What `hyrt doctor` looks at, one file a group. What is checked is imported in child processes only (`children`)."""
