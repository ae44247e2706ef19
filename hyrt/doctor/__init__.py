"""What `hyrt doctor` looks at: `machine`, `software`, and the `settings` of a run.

What is checked is imported in a child process only: `processes` holds the parent's end of it, `children` what
runs there.
"""
