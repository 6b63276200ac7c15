"""What any server of many processes needs: the machine, child processes, telemetry, compiled code, terminal output."""
