"""Host-side code shared by all trainers that are driven through OpenCL."""
