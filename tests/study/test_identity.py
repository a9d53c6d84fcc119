"""An id changes with each setting that can change a number, and with no other."""

from collections.abc import Iterator
from typing import Any

import pytest
from tiny import changed, tiny_study

from coupled_adam_bench.evaluation.stage import measurements
from coupled_adam_bench.store.files import digest
from coupled_adam_bench.study.data import Data, FilesSource, HubSource, Split, SyntheticSource
from coupled_adam_bench.study.evaluation import PAPER_LISTS
from coupled_adam_bench.study.model import Model
from coupled_adam_bench.study.optimizers import KINDS, Optimizer
from coupled_adam_bench.study.plan import VERSIONS, make_plan
from coupled_adam_bench.study.study import Study, parse_study
from coupled_adam_bench.study.training import Training

# Values for settings without one, and where the next number or word would be refused.
OTHER = {
    "max_tokens": 50_000,
    "n_words": 90,
    "label": "other",
    "warmup_fraction": 0.2,
    "limit": 3,
    "num_fewshot": 2,
    "micro_batch_sequences": 2,
    "d_model": 32,
    "table": "own",
    "architecture": "stablelm",
    "schedule": "wsd",
    "warmup_from": "zero",
    "data_order": "per_rank",
    "precision": "bf16",
    "split": "val",
    "windows": "random",
    "isotropy": "eig_float32",
    "task_versions": "0.4.3",
    "parallel": "fsdp",
    "gpu": "A100",
    "comparison": "single_runs",
    "beta1": 0.5,
    "beta2": 0.5,
    "weight_decay": 0.3,
    "arguments": {"a": 1},
    "word_similarity": [PAPER_LISTS[1].model_dump()],
    "tasks": ["race"],
    "columns": ["acc"],
}
# What no number depends on, and what is tested elsewhere because it needs files.
SILENT = (
    "study", "title", "protocol", "paths", "execution", "budget", "tables", "models.0.label",
    "grid.0.table", "grid.0.tokens.0.label",
)  # fmt: skip
# These can take only one value here: the study has one model, and its tokenizer goes with its text.
SINGLE = (
    "data.source.kind", "data.tokenizer", "models.0.name", "grid.0.models", "grid.0.optimizers",
    "paths.text", "paths.tokenizer", "paths.word_similarity", "paths.tasks",
)  # fmt: skip


def leaves(values: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the places and values of all settings."""
    items = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in items:
        inside = f"{place}{key}"
        if value and (
            isinstance(value, dict) or (isinstance(value, list) and isinstance(value[0], dict))
        ):
            yield from leaves(value, f"{inside}.")
        else:
            yield inside, value


def other(place: str, value: Any) -> Any:
    """Return another value that the setting may have."""
    name = place.rpartition(".")[2]
    if name in OTHER and OTHER[name] != value:
        return OTHER[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value * 2 or 1
    if isinstance(value, float):
        return value / 2 or 0.1
    if isinstance(value, list):
        return [*value, 7]
    return {"small": 6} if isinstance(value, dict) else f"{value}x"


def ids(study: Study) -> list[Any]:
    """Return all that results are found by: bins, cells and evaluations."""
    plan = make_plan(study)
    measured = [[each.version, each.settings] for each in measurements(study).values()]
    return [plan.data_id, sorted(plan.cells), measured]


def study_of(*optimizers: Any) -> dict[str, Any]:
    """Return a study of one block without a table."""
    block = {"models": ["small"], "tokens": [{"steps": 30, "label": None}], "seeds": [1, 2, 3]}
    return tiny_study(grid=[block | {"table": None, "optimizers": list(optimizers)}])


def full_study() -> dict[str, Any]:
    """Return a study in which every setting but those of optimizers has its value."""
    values = study_of("adamw", "coupled_adam")
    values["tables"] = {"own": {"title": "Own", "comparison": "pair", "columns": ["loss"]}}
    return parse_study(values).model_dump(mode="json") | {"grid": values["grid"]}


BASE = full_study()


@pytest.mark.parametrize(
    ("place", "value"), [each for each in leaves(BASE) if each[0] not in SINGLE]
)
def test_each_setting_alone(place: str, value: Any) -> None:
    before = ids(parse_study(BASE))
    after = ids(parse_study(changed(BASE, place, other(place, value))))
    if place.startswith(SILENT):
        assert after == before
    elif place.startswith("evaluation."):
        assert after[:2] == before[:2]
        assert after[2] != before[2]
    else:
        assert not {*after[1]} & {*before[1]} or place == "grid.0.seeds"
        assert after[1] != before[1]
        assert (after[0] != before[0]) == place.startswith("data.")


def optimizer_settings() -> Iterator[tuple[str, str]]:
    for kind, known in KINDS.items():
        for field in (*known.settings, "lr_factor", "weight_decay", "mu_centering"):
            if field not in ("path", "key", "label"):
                yield kind, field


@pytest.mark.parametrize(("kind", "field"), [*optimizer_settings()])
def test_each_setting_of_an_optimizer(kind: str, field: str) -> None:
    own = {"name": kind} | ({"path": "tiny.changed", "key": "own"} if kind == "custom" else {})
    default = Optimizer.model_fields[field].default
    before = ids(parse_study(study_of(own)))
    after = ids(parse_study(study_of(own | {field: other(field, default)})))
    assert not {*after[1]} & {*before[1]}
    # A default that is written out changes nothing.
    assert ids(parse_study(study_of(own | {field: default}))) == before


def test_kinds_at_their_defaults_differ() -> None:
    custom = {"name": "custom", "path": "tiny.changed", "key": "own"}
    cells = make_plan(parse_study(study_of("adamw", "coupled_adam", "sgd", custom))).cells
    assert len({cell.rpartition("_")[2] for cell in cells}) == 12


def test_each_setting_of_the_hub() -> None:
    source = {"kind": "hub", "dataset": "a/b"}
    text = {"name": "text", "source": source, "tokenizer": "bpe", "vocab_size": 512}
    found = [text, text | {"tokenizer": "gpt2", "vocab_size": 50304}, text | {"vocab_size": 300}]
    for field in ("dataset", "revision", "files", "text_field"):
        found.append(text | {"source": source | {field: "other"}})
    plans = [make_plan(parse_study(study_of("adamw") | {"data": data})) for data in found]
    assert len({plan.data_id for plan in plans}) == len(found)


def test_a_changed_default_raises_a_version() -> None:
    """Ids leave defaults out: who changes one raises its stage's version and then this digest."""
    sections = (Training, Optimizer, Model, Data, Split, SyntheticSource, FilesSource, HubSource)
    defaults = [
        [section.__name__, name, str(field.default)]
        for section in sections
        for name, field in section.model_fields.items()
    ]
    assert digest([VERSIONS, defaults]) == "ef06d28711"
