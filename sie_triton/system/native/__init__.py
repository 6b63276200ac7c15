"""Our C code: compiled when the wheel is built, or on the machine that runs it. Every use of it is optional."""

from sie_triton.system.native.builds import HOOK, KERNELS, MUVERA, PREPARED, PRIVATE_MEMORY, STAND_IN
from sie_triton.system.native.compiler import INSTALL, compile_program, compile_shared
from sie_triton.system.native.loading import kernels_in_use, library, preloading, put

__all__ = [
    "HOOK",
    "INSTALL",
    "KERNELS",
    "MUVERA",
    "PREPARED",
    "PRIVATE_MEMORY",
    "STAND_IN",
    "compile_program",
    "compile_shared",
    "kernels_in_use",
    "library",
    "preloading",
    "put",
]
