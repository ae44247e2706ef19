"""Subgraphs with all edges between their vertices: parts of the graph (Cluster-GCN), and around targets
(ShaDow).
"""
