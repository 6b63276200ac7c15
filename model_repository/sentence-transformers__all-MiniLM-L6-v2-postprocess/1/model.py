from sie_triton.pipeline.stages.triton import PostprocessModel as TritonPythonModel  # noqa: F401
