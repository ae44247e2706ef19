"""Messages of edges as small element-wise forms: their derivatives, and loops that gather them fused."""
