from sie_triton.stages.triton import Postprocess as TritonPythonModel  # noqa: F401
