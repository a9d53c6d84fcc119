"""One trial before anything is trained: the libraries that do the work show what they read."""

from pathlib import Path
from typing import Any

import yaml

from coupled_adam_bench.data.documents import try_text
from coupled_adam_bench.geometry.words import try_lists
from coupled_adam_bench.store.files import write_json
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.training.trial import try_optimizer


def try_study(plan: Plan, out: Path) -> None:
    """Write ``out``, and print it: text, word lists, tasks and own optimizers as they are read.

    ``ValueError`` for the first that cannot be right.
    """
    study = plan.study
    used = [each for block in study.grid for each in block.optimizers]
    own = {each.names()[0]: each for each in used if each.path is not None}
    read: dict[str, Any] = {
        "text": try_text(plan),
        "word_lists": try_lists(plan),
        "tasks": [],
        "optimizers": [try_optimizer(each, study.training) for each in own.values()],
    }
    if study.evaluation.downstream is not None:
        from coupled_adam_bench.evaluation.downstream import try_tasks  # lm-eval takes seconds

        read["tasks"] = try_tasks(plan)
    print(yaml.safe_dump(read, sort_keys=False, allow_unicode=True))
    write_json(out, read)
