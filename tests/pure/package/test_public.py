import sie_triton

PUBLIC = [
    "AsyncSIEClient",
    "BusyError",
    "Classification",
    "EncodeResult",
    "Entity",
    "ExtractResult",
    "InputError",
    "Item",
    "LoadError",
    "ModelError",
    "Object",
    "Relation",
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
