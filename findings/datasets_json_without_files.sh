#!/usr/bin/env bash
# `load_dataset("json")` without a file reads the whole working folder: the files of all subfolders,
# whatever their names end in.
#
# Versions: datasets 5.2.0, pyarrow 25.0.1. Seen on 2026-11-27 with Python 3.11 on Linux, x86-64.
# Guess: an error that no data files are given, as `data_files` has no default. Sure: 90 %.
# Who meets it: who forgets `data_files` in a task of lm-eval, and evaluates on the results that lie
# in the same folder.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datasets==5.2.0 pyarrow==25.0.1
mkdir -p "$folder/work/results" "$folder/cache"
cd "$folder/work"
echo '{"x": "items"}' >items.json
echo '{"x": "result"}' >results/metrics.json
echo '{"x": "note"}' >notes.txt
HF_HUB_OFFLINE=1 ../venv/bin/python - <<'END'
import sys

from datasets import disable_progress_bars, load_dataset

disable_progress_bars()
seen = sorted(load_dataset("json", cache_dir="../cache")["train"]["x"])
print(seen)
sys.exit(seen != ["items", "note", "result"])
END
