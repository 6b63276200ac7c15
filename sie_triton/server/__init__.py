"""Find a tritonserver, check the machine, start the server and end it cleanly."""
