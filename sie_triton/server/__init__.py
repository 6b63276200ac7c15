"""Finds a tritonserver, checks the machine, starts the server and ends it cleanly."""
