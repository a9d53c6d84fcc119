"""Versions of the mathematics of data, training and statistics; those of evaluation are in
``catalogue/stages.py``.

A version changes if and only if the numbers that the stage writes can change. The versions of data
and training are part of a cell's id, so new mathematics never resumes an old checkpoint. An
evaluation stage stores its numbers under its version, so old numbers are never taken for new ones.
The version of the statistics is a parameter of its rule.
"""

DATA = 1
TRAIN = 1
STATISTICS = 8
