"""SIE's own HTTP in front of Triton: a process that reads requests, calls Triton over gRPC, and writes responses."""
