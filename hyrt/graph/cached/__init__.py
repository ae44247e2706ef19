"""Rows of which a device keeps some: who keeps which, and what is sent to it."""
