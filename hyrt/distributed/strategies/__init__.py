"""Who trains which root of a step, and what moves for it: pure functions, one file a strategy."""
