#!/usr/bin/env bash
# Where the right answer of a task is a text like "[1, 2]", lm-eval reads it as two right answers,
# so a model that writes exactly this text scores 0 in exact_match.
#
# Versions: lm_eval 0.4.13, datasets 5.2.0. Seen on 2026-11-27 with Python 3.11 on Linux,
# x86-64, without a GPU.
# Guess: the text is compared with the text, so the score is 1. Sure: 60 %.
# Who meets it: who has tasks on code, arithmetic or structured output in lm-eval.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet lm_eval==0.4.13 datasets==5.2.0
cd "$folder"
HF_HUB_OFFLINE=1 HF_HOME=hub venv/bin/python - <<'END'
import json
import logging
import sys

import lm_eval
import yaml
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

logging.disable(logging.CRITICAL)


class Echo(LM):
    """A model that answers each question with the question."""

    def generate_until(self, requests):
        return [request.args[0] for request in requests]

    def loglikelihood(self, requests):
        raise NotImplementedError

    def loglikelihood_rolling(self, requests):
        raise NotImplementedError


def score(answer: str) -> float:
    """Return exact_match of a model that gives the right answer, letter by letter."""
    with open("documents.jsonl", "w") as file:
        file.write(json.dumps({"text": answer}) + "\n")
    task = {
        "task": "echo",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "documents.jsonl"}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{text}}",
        "doc_to_target": "{{text}}",
        "generation_kwargs": {"until": ["\n"]},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    with open("echo.yaml", "w") as file:
        yaml.safe_dump(task, file)
    tasks = TaskManager(include_path=".", include_defaults=False)
    results = lm_eval.simple_evaluate(Echo(), tasks=["echo"], task_manager=tasks, bootstrap_iters=0)
    return float(results["results"]["echo"]["exact_match,none"])


seen = {answer: score(answer) for answer in ("[1, 2]", "[1, 2)", "[one, two]")}
expected = {"[1, 2]": 0.0, "[1, 2)": 1.0, "[one, two]": 1.0}
print(seen)
sys.exit(seen != expected)
END
