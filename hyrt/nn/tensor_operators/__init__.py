"""The operators over blocks of torch tensors, on any device that torch runs on."""
