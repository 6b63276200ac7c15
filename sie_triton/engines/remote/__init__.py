"""A remote server (SGLang, vLLM, or one with the same API) as an engine, over HTTP. The server holds the weights."""
