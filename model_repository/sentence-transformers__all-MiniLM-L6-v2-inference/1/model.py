from sie_triton.stages.triton import InferenceModel as TritonPythonModel  # noqa: F401
