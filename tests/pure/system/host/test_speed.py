"""The hints on what would be faster."""

import pytest

from sie_triton.settings import read_settings
from sie_triton.system.host import speed
from sie_triton.system.host.speed import BFLOAT16, INT8, ONNX_RUNTIME, speedups


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Pretend a processor with these flags, with or without ONNX Runtime."""

    def pretend(flags, *, has_onnx):
        info = tmp_path / "cpuinfo"
        info.write_text(f"processor : 0\nvendor_id : x\nflags\t\t: fpu {flags} sse\n\nprocessor : 1\n")
        monkeypatch.setattr(speed, "CPU_INFO", info)
        monkeypatch.setattr(speed, "find_spec", lambda name: object() if has_onnx else None)

    return pretend


@pytest.mark.parametrize(
    ("flags", "has_onnx", "expected"),
    [
        ("avx512f", True, []),
        ("avx512f", False, [ONNX_RUNTIME]),
        ("avx512_bf16", True, [BFLOAT16]),
        ("avx512_vnni", True, [INT8]),
        ("avx512_vnni avx512_bf16", True, [BFLOAT16, INT8]),
        ("amx_bf16 avx512f", False, [ONNX_RUNTIME, BFLOAT16]),
    ],
)
def test_what_a_machine_lacks_or_leaves_unused_is_named(machine, flags, has_onnx, expected):
    machine(flags, has_onnx=has_onnx)
    assert speedups("cpu", "auto", "") == expected
    assert read_settings(device="cpu", engine="auto").speedups == expected


def test_what_the_settings_exclude_is_not_proposed(machine):
    machine("avx512_bf16 avx512_vnni", has_onnx=False)
    assert speedups("cpu", "torch", "float32") == []
    assert speedups("cuda:0", "auto", "") == []


def test_an_unknown_processor_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setattr(speed, "CPU_INFO", tmp_path / "missing")
    assert not speed.processor_flags()
    monkeypatch.setattr(speed, "CPU_INFO", tmp_path)
    assert not speed.processor_flags()
