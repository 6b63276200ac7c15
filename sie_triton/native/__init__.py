"""Our C: compiled on the machine that runs it, and always optional."""

from sie_triton.native.compiler import INSTALL, compile_program, compile_shared

__all__ = ["INSTALL", "compile_program", "compile_shared"]
