"""Edge messages as element-wise expressions: derivatives, code generation, and fused gather loops."""
