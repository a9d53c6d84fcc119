#!/usr/bin/env bash
# The cosine of a word with a row of zeros is 0 for gensim's `similarity` and NaN for its
# `most_similar`, where the word comes last instead of between positive and negative ones.
#
# Versions: gensim 4.4.0, numpy 2.4.6. Seen on 2026-11-27 with Python 3.11 on Linux, x86-64,
# without a GPU.
# Guess: NaN from both. Sure: 70 %.
# Who meets it: who reads embeddings whose row of padding, or of a word that was never trained,
# is zero.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet gensim==4.4.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'END'
import math
import sys

import numpy
from gensim.models import KeyedVectors

vectors = KeyedVectors(2)
rows = numpy.array([[1, 0], [1, 1], [0, 0], [-1, 0]], dtype=numpy.float32)
vectors.add_vectors(["king", "queen", "padding", "cabbage"], rows)
neighbours = vectors.most_similar("king")
print("similarity:", vectors.similarity("king", "padding"), "most_similar:", neighbours)
seen = {
    "similarity": float(vectors.similarity("king", "padding")),
    "most_similar": "NaN" if math.isnan(dict(neighbours)["padding"]) else "a number",
    "order": [word for word, _ in neighbours],
}
expected = {"similarity": 0.0, "most_similar": "NaN", "order": ["queen", "cabbage", "padding"]}
sys.exit(seen != expected)
END
