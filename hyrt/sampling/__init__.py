"""From the targets of a step to mini-batches: the sampler protocol, blocks, and one file a sampler."""
