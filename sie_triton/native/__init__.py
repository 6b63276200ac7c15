"""Compile our C code on the machine that runs it. Every use of it is optional."""

from sie_triton.native.compiler import INSTALL, compile_program, compile_shared

__all__ = ["INSTALL", "compile_program", "compile_shared"]
