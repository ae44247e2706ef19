"""The child process that is asked everything: its pipes, and when it hangs."""
