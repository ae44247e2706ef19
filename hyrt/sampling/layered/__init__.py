"""Samplers of targets whose edges are sampled layer by layer, per mini-batch or per step."""
