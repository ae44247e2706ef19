"""All-reduce of gradients over all ranks."""
