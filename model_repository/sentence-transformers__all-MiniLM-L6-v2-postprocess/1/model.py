from sie_triton.stages.triton import PostprocessModel as TritonPythonModel  # noqa: F401
