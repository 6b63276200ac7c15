"""Models that read an image or a sound and generate tokens."""
