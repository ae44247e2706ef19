"""Hotness: how often each feature row is read, estimated before training."""
