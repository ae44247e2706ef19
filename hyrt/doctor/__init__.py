"""What `hyrt doctor` looks at: `machine`, `software`, and the `settings` of a run.

What is checked is imported in a child process only: `children` holds what runs there.
"""
