"""What every trainer that is driven through OpenCL does on the host, whatever computes on the device."""
