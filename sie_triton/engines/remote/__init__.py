"""A server of somebody's as an engine: SGLang, vLLM, or one with the same API, over HTTP. It holds the weights."""
