"""Expected sizes of sampled mini-batches, without sampling."""
