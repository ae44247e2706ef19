"""How rows and their gradients travel: those that are needed, or all."""
