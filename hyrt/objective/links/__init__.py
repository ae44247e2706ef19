"""Link prediction: what pairs of vertices score, what that costs, and what it is worth."""
