"""Host code that all trainers with OpenCL share."""
