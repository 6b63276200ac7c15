from sie_triton.stages.triton import Preprocess as TritonPythonModel  # noqa: F401
