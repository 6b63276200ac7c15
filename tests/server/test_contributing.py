"""CONTRIBUTING's example family. tests/server/families/test_environment.py serves it."""

from pathlib import Path

from tests.server.test_examples import blocks_of

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
BLOCKS = {block.language: block.text for block in blocks_of(CONTRIBUTING.read_text())}


def test_the_example_adapter_fits_in_sixty_lines():
    assert BLOCKS["python"].count("\n") <= 60
