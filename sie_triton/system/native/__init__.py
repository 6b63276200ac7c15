"""Our C code: compiled when the wheel is built, or on the machine that runs it. Every use of it is optional."""
