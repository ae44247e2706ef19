"""Built-in layers that derive from `SagaLayer` like user-defined layers."""
