from sie_triton.stages.triton import PreprocessModel as TritonPythonModel  # noqa: F401
