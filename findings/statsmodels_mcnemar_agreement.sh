#!/usr/bin/env bash
# McNemar's test by the chi-squared distribution gives p = 0 for two models that agree on every
# item, because its correction for continuity is divided by zero.
#
# Versions: statsmodels 0.15.0, scipy 1.17.1, pandas 3.1.1, numpy 2.4.6. Seen on 2026-11-27 with
# Python 3.11 on Linux, x86-64, without a GPU.
# Guess: NaN with a warning, or 1.0 as the exact test. Sure: 85 %.
# Who meets it: who compares two models item by item, and one of them is a copy, or equal on a
# small task.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet statsmodels==0.15.0 scipy==1.17.1 pandas==3.1.1 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'END'
import sys
import warnings

from statsmodels.stats.contingency_tables import mcnemar

warnings.simplefilter("ignore")  # of a division by zero
table = [[30, 0], [0, 20]]  # both right 30 times, both wrong 20 times, never different
seen = {"exact": float(mcnemar(table, exact=True).pvalue), "chi2": float(mcnemar(table, exact=False).pvalue)}
expected = {"exact": 1.0, "chi2": 0.0}
print(seen)
sys.exit(seen != expected)
END
