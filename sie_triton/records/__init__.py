"""Small files that processes share: what each process holds, and what it waits for."""
