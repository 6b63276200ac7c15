"""The definition of "the same vector" for all tests."""

import numpy as np

TO_REFERENCE = 0.99999
TO_ITSELF = 0.999999


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    assert left.shape == right.shape
    left, right = left.astype(np.float64), right.astype(np.float64)
    return (left * right).sum(1) / (np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1))


def assert_parity(ours: np.ndarray, theirs: np.ndarray, at_least: float = TO_REFERENCE) -> None:
    worst = cosines(ours, theirs).min()
    assert worst >= at_least, f"lowest cosine {worst:.9f} is under {at_least}"


def varied_texts(count: int = 300, seed: int = 3) -> list[str]:
    """Return texts from empty to 10,000 words, in several scripts and directions."""
    rng = np.random.default_rng(seed)
    words = [
        "river",
        "der",
        "Straße",
        "naïve",
        "量子",
        "コンピュータ",
        "مرحبا",
        "שלום",
        "😀",
        "🇫🇷",
        "ﬁ",
        "a",
        "x²",
        "don't",
    ]
    fixed = ["", " ", "a", "😀", "\n\t", "量子コンピュータは速い", "مرحبا بالعالم", "שלום עולם", "word " * 10_000]
    lengths = rng.integers(0, 2_000, count // 12).tolist()
    lengths += rng.integers(0, 60, count - len(fixed) - len(lengths)).tolist()
    return fixed + [" ".join(rng.choice(words, size=n)) for n in lengths]
