"""The gathering of a layer's messages over blocks of tensors, wherever those live."""
