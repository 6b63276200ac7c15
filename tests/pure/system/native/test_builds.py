"""Which compiled file a processor gets."""

import re
from pathlib import Path

import pytest

from sie_triton.server.stub_forking import stubs
from sie_triton.system.native import builds as module
from sie_triton.system.native import loading
from sie_triton.system.native.builds import GENERIC, HOOK, INSTALL, KERNELS, MUVERA, VECTORS, VNNI
from sie_triton.system.native.loading import kernels_in_use
from sie_triton.system.processes import pids

X86_64_V2 = ("pni", "ssse3", "cx16", "sse4_1", "sse4_2", "popcnt", "lahf_lm")
HASWELL = ("fpu", *X86_64_V2, "fma", "movbe", "xsave", "avx", "f16c", "abm", "bmi1", "avx2", "smep", "bmi2")
SKYLAKE_X = (*HASWELL, "avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl")
ICE_LAKE = (*SKYLAKE_X, "avx512_vnni", "avx512_bitalg")
ALDER_LAKE = (*HASWELL, "avx_vnni")  # VNNI without AVX-512
KNIGHTS_LANDING = (*HASWELL, "avx512f", "avx512pf", "avx512er", "avx512cd")


@pytest.fixture
def x86(monkeypatch):
    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")


def best(build, directory, flags):
    return next((level.name for level, _ in build.candidates(directory, set(flags))), None)


@pytest.mark.parametrize(
    ("flags", "kernels", "muvera"),
    [
        (ICE_LAKE, "avx512_vnni", "avx512"),
        (SKYLAKE_X, "avx512", "avx512"),
        (KNIGHTS_LANDING, "avx2", "avx2"),
        (ALDER_LAKE, "avx2", "avx2"),
        (HASWELL, "avx2", "avx2"),
        ({*HASWELL} - {"fma"}, None, None),
        ([], None, None),
    ],
)
def test_a_processor_gets_the_best_file_that_it_can_run(tmp_path, x86, flags, kernels, muvera):
    for build in (KERNELS, MUVERA):
        for level in build.levels:
            (tmp_path / build.file_name(level)).touch()
    assert best(KERNELS, tmp_path, flags) == kernels
    assert best(MUVERA, tmp_path, flags) == muvera


def test_a_level_that_was_not_compiled_is_replaced_by_the_next(tmp_path, x86):
    (tmp_path / KERNELS.file_name(VECTORS[-1])).touch()
    assert best(KERNELS, tmp_path, ICE_LAKE) == "avx2"


def test_code_that_may_not_run_is_not_put(tmp_path, monkeypatch):
    (tmp_path / HOOK.file_name(GENERIC)).touch()
    monkeypatch.setattr(loading, "PACKAGE", tmp_path)
    monkeypatch.setattr(loading, "BUILT", "")
    for may_run in (True, False):  # False: mounted noexec
        monkeypatch.setattr(loading.os, "access", lambda path, mode, may_run=may_run: may_run)
        assert loading.put(HOOK, tmp_path / "hook.so") == may_run
        assert (tmp_path / "hook.so").exists() == may_run


def test_another_architecture_has_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr(module.platform, "machine", lambda: "aarch64")
    (tmp_path / KERNELS.file_name(GENERIC)).touch()
    assert best(KERNELS, tmp_path, ["asimd"]) == "generic"


@pytest.mark.parametrize("changed", ["attention.c", "vector.h"])
def test_a_file_of_other_sources_is_not_used(tmp_path, monkeypatch, x86, changed):
    sources = tmp_path / "engines" / "torch" / "native"
    sources.mkdir(parents=True)
    for name in ("attention.c", "vector.h"):
        (sources / name).write_text("int x;")
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    (tmp_path / KERNELS.file_name(VNNI)).touch()
    assert best(KERNELS, tmp_path, ICE_LAKE) == "avx512_vnni"
    (sources / changed).write_text("int y;")
    assert best(KERNELS, tmp_path, ICE_LAKE) is None


def test_a_file_of_other_options_is_not_used(tmp_path, x86):
    (tmp_path / KERNELS.file_name(VNNI)).touch()
    assert best(KERNELS._replace(options=("-O2",)), tmp_path, ICE_LAKE) is None


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty directory for compiled files; `loading` forgets what it has loaded."""
    monkeypatch.setattr(loading, "_places", lambda: [tmp_path])
    loading._load.cache_clear()
    yield tmp_path
    loading._load.cache_clear()


def test_the_kernels_in_use_are_named(cache):
    assert kernels_in_use("cpu") == "compiled on this machine"
    assert [path.name for path in cache.iterdir()] == [KERNELS.file_name(loading.this_processor())]
    assert kernels_in_use("cuda:0") is None


def test_without_kernels_the_remedy_is_named(cache, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert kernels_in_use("cpu") == f"none, so PyTorch's own are used, which are slower; {INSTALL}"
    assert list(cache.iterdir()) == []


def test_a_broken_library_is_compiled_again_elsewhere(cache, tmp_path, monkeypatch):
    (cache / MUVERA.file_name(loading.this_processor())).write_bytes(b"not a library")
    other = tmp_path / "other"
    monkeypatch.setattr(loading, "_places", lambda: [cache, other])
    assert loading.library(MUVERA) is not None
    assert len(list(other.iterdir())) == 1


def test_c_and_python_agree_about_stubs():
    header = Path(stubs.__file__).with_name("native") / "shared.h"
    shared = dict(re.findall(r'^#define (\w+) "?(\w+)"?$', header.read_text(), re.MULTILINE))
    assert shared == {
        "REAL_STUB": stubs.REAL_STUB,
        "DECLINED": str(stubs.DECLINED),
        "UNSUITED": str(stubs.UNSUITED),
        "HANDLE": str(pids.HANDLE),
    }
