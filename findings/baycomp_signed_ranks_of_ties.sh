#!/usr/bin/env bash
# The Bayesian signed-rank test gives a model 0.68 against a copy of itself, and 1.0 to one that
# differs on one data set of ten.
#
# Versions: baycomp 1.0.3, numpy 2.4.6. Seen on 2026-11-27 with Python 3.11 on Linux, x86-64,
# without a GPU.
# Guess: 0.5 against 0.5 for a copy, and between 0.6 and 0.9 for one difference. Sure: 50 %.
# Who meets it: who compares models over data sets of which many have equal scores, without a
# region of practical equivalence.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet baycomp==1.0.3 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'END'
import sys

import baycomp
import numpy

numpy.random.seed(0)
scores = numpy.linspace(0.4, 0.9, 10)
once_better = scores.copy()
once_better[3] += 0.01
copy = [float(p) for p in baycomp.two_on_multiple(scores, scores)]
one = [float(p) for p in baycomp.two_on_multiple(scores, once_better)]
print("against a copy (first, equal, second):", copy)
print("against one that is better once:", one)
seen = {"copy: first": round(copy[0], 1), "copy: second": round(copy[2], 1), "one: second": one[2]}
expected = {"copy: first": 0.7, "copy: second": 0.3, "one: second": 1.0}
sys.exit(seen != expected)
END
