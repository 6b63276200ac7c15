import sie_triton

PUBLIC = [
    "AsyncSIEClient",
    "BusyError",
    "EncodeResult",
    "InputError",
    "Item",
    "LoadError",
    "ModelError",
    "SIEClient",
    "SIEError",
    "ScoreEntry",
    "ScoreResult",
    "Timing",
    "maxsim",
]


def test_exported_names():
    assert sorted(sie_triton.__all__) == PUBLIC
    assert all(getattr(sie_triton, name).__name__ == name for name in PUBLIC)
