"""Families that take LoRA adapters in this version, and some that do not."""

from sie_triton.models.families import family


def set_takes_loras(monkeypatch, name: str, value: bool) -> None:
    monkeypatch.setattr(type(family(name)), "takes_loras", value)
