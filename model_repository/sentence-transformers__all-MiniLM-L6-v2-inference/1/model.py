from sie_triton.stages.triton import Inference as TritonPythonModel  # noqa: F401
