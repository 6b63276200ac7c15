from sie_triton.pipeline.stages.triton import InferenceModel as TritonPythonModel  # noqa: F401
