"""The machine, child processes, telemetry, compiled code and terminal output: below everything about models."""
