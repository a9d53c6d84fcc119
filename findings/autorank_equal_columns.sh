#!/usr/bin/env bash
# autorank writes that one of two identical columns is significantly larger than the other, since
# its p-value is NaN and the report asks whether it is at least alpha.
#
# Versions: autorank 1.3.0, pandas 3.1.1, scipy 1.17.1, numpy 2.4.6. Seen on 2026-11-27 with
# Python 3.11 on Linux, x86-64, without a GPU.
# Guess: a p-value of 1, or NaN with the words "failed to reject". Sure: 60 %.
# Who meets it: who compares optimizers of which one reduces to another at some setting.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet autorank==1.3.0 pandas==3.1.1 scipy==1.17.1 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'END'
import contextlib
import io
import sys
import warnings

import pandas
from autorank import autorank, create_report

warnings.simplefilter("ignore")  # of a division by zero
scores = [0.46, 0.48, 0.49, 0.50, 0.505, 0.51, 0.52, 0.525, 0.54, 0.56]
result = autorank(pandas.DataFrame({"adam": scores, "copy": scores}), verbose=False)
report = io.StringIO()
with contextlib.redirect_stdout(report):
    create_report(result)
last = report.getvalue().strip().splitlines()[-1]
print(last)
seen = {"p": str(result.pvalue), "significantly larger": "significantly larger" in last}
expected = {"p": "nan", "significantly larger": True}
print(seen)
sys.exit(seen != expected)
END
