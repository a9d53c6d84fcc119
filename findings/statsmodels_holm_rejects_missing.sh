#!/usr/bin/env bash
# Holm's correction calls a hypothesis without a p-value rejected, if all others of the family are:
# `reject` is True where `pvals_corrected` is NaN. With Bonferroni's it is False.
#
# Versions: statsmodels 0.15.0, scipy 1.17.1, pandas 3.1.1, numpy 2.4.6. Seen on 2026-11-27 with
# Python 3.11 on Linux, x86-64, without a GPU.
# Guess: NaN stays at its place and is not rejected; the others are corrected for three. Sure: 85 %.
# Who meets it: who counts the rejected hypotheses of a family in which one test had no spread.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet statsmodels==0.15.0 scipy==1.17.1 pandas==3.1.1 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'END'
import sys

from statsmodels.stats.multitest import multipletests

p_values = [0.001, 0.002, float("nan")]
seen = {}
for method in ("holm", "bonferroni"):
    reject, corrected, *_ = multipletests(p_values, method=method)
    seen[method] = reject.tolist(), [round(float(p), 4) for p in corrected]
    print(method, *seen[method])
holm, bonferroni = seen["holm"][0], seen["bonferroni"][0]
sys.exit((holm, bonferroni) != ([True, True, True], [True, True, False]))
END
