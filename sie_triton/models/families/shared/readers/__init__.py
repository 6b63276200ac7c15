"""Models that read an image and generate tokens."""
