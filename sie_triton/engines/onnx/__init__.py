"""ONNX Runtime: graphs of encoders for small sub-batches, and checkpoints in ONNX format."""
