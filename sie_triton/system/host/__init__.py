"""The machine: its devices, memory, container limits and private files."""
