from sie_triton.pipeline.stages.triton import PreprocessModel as TritonPythonModel  # noqa: F401
