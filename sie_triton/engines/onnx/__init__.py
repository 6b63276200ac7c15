"""ONNX Runtime: graphs of encoders for small sub-batches, and checkpoints that are ONNX files."""
