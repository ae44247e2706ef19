"""Distributed training: process groups, placement strategies and communication between ranks."""
