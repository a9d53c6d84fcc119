"""Texts of seeded words, and files of them."""

import json
from pathlib import Path

import numpy as np

SHAPES = ("{}", "{} {}", "{}.\n{}", "é{} 字{}", "  {}", "{}<|endoftext|>{}", "\t{}'s {}")


def make_texts(seed: int, n: int) -> list[str]:
    """Documents of different lengths, with white space, other scripts and a special token."""
    rng = np.random.default_rng(seed)
    words = ["".join(map(chr, rng.integers(97, 105, size=rng.integers(1, 5)))) for _ in range(60)]
    texts = []
    for number in range(n):
        chosen = rng.choice(words, size=rng.integers(4, 40)).tolist()
        shape = SHAPES[number % len(SHAPES)]
        texts.append(" ".join([shape.format(*chosen[:2]), *chosen[2:], str(number)]))
    return texts


def write_jsonl(path: Path, texts: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps({"n": n, "text": text}) + "\n" for n, text in enumerate(texts))
    )
    return path
