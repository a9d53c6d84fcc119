#!/usr/bin/env bash
# One missing score gets four treatments in one package: Nemenyi's test ranks the rest of its row,
# Tukey's drops the value, Mann-Whitney's gives NaN, and the t-tests refuse it.
#
# Versions: scikit-posthocs 0.17.1, pandas 3.1.1, statsmodels 0.15.0, scipy 1.17.1, numpy 2.4.6.
# Seen on 2026-11-27 with Python 3.11 on Linux, x86-64, without a GPU.
# Guess: all give NaN for pairs with the column. Sure: 50 %.
# Who meets it: who compares several optimizers of which one run diverged.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet scikit-posthocs==0.17.1 pandas==3.1.1 statsmodels==0.15.0 scipy==1.17.1 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'END'
import sys
import warnings

import numpy
import pandas
import scikit_posthocs

warnings.simplefilter("ignore")
scores = pandas.DataFrame(
    {
        "adam": [0.50, 0.52, 0.49, 0.55, 0.51, 0.53],
        "coupled": [0.51, 0.55, 0.50, 0.54, 0.53, 0.56],
        "sgd": [numpy.nan, 0.40, 0.41, 0.39, 0.42, 0.38],
    }
)
long = scores.melt(var_name="optimizer", value_name="score")
columns = {"val_col": "score", "group_col": "optimizer"}


def outcome(test, *arguments, **keywords) -> str:
    """Return what a test says of Adam and SGD."""
    try:
        p_value = test(*arguments, **keywords).loc["adam", "sgd"]
    except ValueError:
        return "refused"
    return "NaN" if numpy.isnan(p_value) else "a number"


seen = {
    "nemenyi": outcome(scikit_posthocs.posthoc_nemenyi_friedman, scores),
    "tukey": outcome(scikit_posthocs.posthoc_tukey, long, **columns),
    "mann-whitney": outcome(scikit_posthocs.posthoc_mannwhitney, long, **columns),
    "t": outcome(scikit_posthocs.posthoc_ttest, long, **columns),
}
expected = {"nemenyi": "a number", "tukey": "a number", "mann-whitney": "NaN", "t": "refused"}
print(seen)
sys.exit(seen != expected)
END
