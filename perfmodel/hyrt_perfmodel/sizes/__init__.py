"""Expected sizes of sampled mini-batches, computed without sampling."""
