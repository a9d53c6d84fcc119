"""Version of the mathematics of every stage.

A version changes when, and only when, the numbers that the stage writes can change. Versions of ``data`` and ``train``
are part of a cell's id, so new mathematics never resumes an old checkpoint; the others are parameters of their rules,
so a change reruns the stage and what depends on it.
"""

DATA = 1
TRAIN = 1
TEST_LOSS = 1
EMBEDDINGS = 1
DOWNSTREAM = 1
THEORY = 1
STATISTICS = 1
