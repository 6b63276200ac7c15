"""perf_analyzer against a running server, with texts of a workload."""
