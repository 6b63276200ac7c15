"""What computes a family's encoder."""
