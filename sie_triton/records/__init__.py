"""Small mapped files between processes: who holds what, and who waits for what."""
