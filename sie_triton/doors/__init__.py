"""SIE's own HTTP in front of Triton: a process that reads requests, asks Triton over gRPC, and writes answers."""
