"""The libraries and programs compiled from our C code, the processors of each, and the machine's C compiler.

setup.py compiles it into the wheel; a source tree compiles it when it is used. Needs the standard library only.
"""

import hashlib
import platform
import shutil
import subprocess
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[2]

# Directory of compiled files, below the package's; only an installed wheel has it.
BUILT = Path("system", "native", "built")

# Compiles OpenMP's pragmas, and links no OpenMP library: `loading.py` loads that of PyTorch.
OPENMP = ("-Xpreprocessor", "-fopenmp")


class Level(NamedTuple):
    """Instructions that compiled code may use.

    `options` are the compiler's, `flags` those that Linux reports for a processor with these instructions.
    """

    name: str
    options: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()


X86_64_V2 = {"pni", "ssse3", "cx16", "sse4_1", "sse4_2", "popcnt", "lahf_lm"}
AVX2 = frozenset({*X86_64_V2, "avx", "avx2", "f16c", "fma", "bmi1", "bmi2", "abm", "movbe", "xsave"})  # x86-64-v3
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}  # x86-64-v4

GENERIC = Level("generic")
VECTORS = (Level("avx512", ("-march=x86-64-v4",), AVX512), Level("avx2", ("-march=x86-64-v3",), AVX2))
VNNI = Level("avx512_vnni", ("-march=x86-64-v4", "-mavx512vnni"), AVX512 | {"avx512_vnni"})


class Build(NamedTuple):
    """A library or a program: its C files, as a pattern below the package, and the compiler's options.

    `x86_levels`, the best first, are those of x86-64 that make it faster.
    """

    name: str
    pattern: str
    options: tuple[str, ...]
    x86_levels: tuple[Level, ...] = ()
    is_program: bool = False

    @property
    def sources(self) -> list[Path]:
        return sorted(PACKAGE.glob(self.pattern))

    @property
    def levels(self) -> Sequence[Level]:
        """Levels that a wheel has files for, the best first."""
        return (platform.machine() == "x86_64" and self.x86_levels) or (GENERIC,)

    def file_name(self, level: Level) -> str:
        """Return a name that changes with the sources, their headers and the options."""
        headers = [path for folder in {path.parent for path in self.sources} for path in sorted(folder.glob("*.h"))]
        hashed = hashlib.sha256(repr((self.options, level.options, sorted(level.flags))).encode())
        for path in (*self.sources, *headers):
            hashed.update(path.read_bytes())
        return f"{self.name}-{level.name}-{hashed.hexdigest()[:16]}{'' if self.is_program else '.so'}"

    def candidates(self, directory: Path, flags: Set[str]) -> Iterator[tuple[Level, Path]]:
        """Yield the files in `directory` that a processor with these `flags` can run, the best first."""
        for level in self.levels:
            path = directory / self.file_name(level)
            if level.flags <= flags and path.exists():
                yield level, path


KERNELS = Build("torch", "engines/torch/native/*.c", ("-O3", *OPENMP), (VNNI, *VECTORS))
MUVERA = Build("transforms", "contract/transforms/native/*.c", ("-O3",), VECTORS)
HOOK = Build("admission", "pipeline/scheduling/admission.c", ("-O2",))
STAND_IN = Build("standin", "server/stub_forking/native/standin.c", ("-O2",), is_program=True)
PREPARED = Build("prepared", "server/stub_forking/native/prepared.c", ("-O2",))
PRIVACY = Build("privacy", "server/privacy.c", ("-O2",))
BUILDS = (KERNELS, MUVERA, HOOK, STAND_IN, PREPARED, PRIVACY)


COMPILERS = ("cc", "gcc", "clang")
INSTALL = "install a C compiler with its headers (Debian, Ubuntu: apt install gcc libc6-dev)"


def compile_build(build: Build, level: Level, output: Path) -> bool:
    """Compile `build` for the processors of `level`; return False if there is no compiler or it fails."""
    compile_file = compile_program if build.is_program else compile_shared
    return compile_file(build.sources, output, *build.options, *level.options)


def compile_shared(sources: Sequence[Path], library: Path, *options: str) -> bool:
    """Compile `sources` into the shared library `library`; return False if there is no compiler or it fails."""
    return _compile(sources, library, "-shared", "-fPIC", *options)


def compile_program(sources: Sequence[Path], program: Path, *options: str) -> bool:
    """Compile `sources` into `program`, statically linked if possible; return False as `compile_shared` does."""
    return _compile(sources, program, "-static", *options) or _compile(sources, program, *options)


def _compile(sources: Sequence[Path], output: Path, *options: str) -> bool:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return False
    command = [compiler, "-std=gnu11", *options, "-o", str(output), *map(str, sources), "-lm", "-ldl"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
