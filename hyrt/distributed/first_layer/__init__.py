"""Distributed first layers: feature parallelism (P3) and migrating models (HopGNN)."""
