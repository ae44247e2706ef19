"""What runs in child processes: it may import, open and crash whatever it checks.

A module here has `answer(item, say, **arguments)`, called once an item; what it says, as JSON, comes back to
the parent.
"""
