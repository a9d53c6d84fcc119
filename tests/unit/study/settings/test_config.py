"""Each error that a study file can contain, read as its author would read it, and the properties of
the settings."""

import copy
from typing import Any

import pytest
import yaml

from coupled_adam_bench.study.catalogue.presets import MODEL_PRESETS, Place
from coupled_adam_bench.study.catalogue.tables import Table
from coupled_adam_bench.study.settings import (
    Model,
    parse_study,
)
from coupled_adam_bench.study.settings.base import parse_count

MINIMAL = """
study: tiny
data:
  name: synthetic
  source: {kind: synthetic, n_words: 50}
  tokenizer: word
  vocab_size: 64
models: [gpt2-2x32, gpt2-2x64]
training: {seq_len: 16, batch_sequences: 4, warmup_steps: 5}
grid:
  - table: table1
    models: [gpt2-2x32]
    tokens: [640, 1K]
    optimizers: [adamw, coupled_adam]
"""


def study(**changes: Any) -> dict[str, Any]:
    """Return the minimal study with values replaced, ``grid__0__seeds=1`` for ``grid: [{seeds:
    1}]``."""
    values = yaml.safe_load(MINIMAL)
    for path, value in changes.items():
        *parents, last = (int(part) if part.isdigit() else part for part in path.split("__"))
        target = values
        for part in parents:
            target = target[part] if isinstance(part, int) else target.setdefault(part, {})
        target[last] = value
    return values


LION = {"name": "custom", "path": "pytorch_optimizer.Lion", "key": "lion", "label": "Lion"}


def with_lion(**changes: Any) -> dict[str, Any]:
    """Return the minimal study with an optimizer of the user's as the second."""
    return study(grid__0__optimizers=["adamw", LION | changes])


OWN_TABLE = {"title": "Mine", "comparison": "each_other", "columns": ["loss", "isotropy", "r_bar"]}
GRID = study()["grid"]


def own_table(**changes: Any) -> dict[str, Any]:
    """Return the minimal study with a table of its own; a change to None leaves a setting out."""
    settings = {name: value for name, value in (OWN_TABLE | changes).items() if value is not None}
    return study(tables={"mine": settings}, grid__0__table="mine")


def errors(values: Any) -> list[str]:
    """Return the lines of the error, without the heading."""
    before = copy.deepcopy(values)
    with pytest.raises(ValueError) as raised:
        parse_study(values, "my.yaml")
    assert values == before
    heading, *lines = str(raised.value).splitlines()
    assert heading == f"my.yaml: {len(lines)} invalid setting(s)"
    assert all(line.startswith("  ") for line in lines)
    return [line.strip() for line in lines]


def test_the_minimal_study_is_valid_and_immutable():
    parsed = parse_study(study())
    assert parsed.grid[0].seeds == (1, 2, 3)
    assert parsed.grid[0].tokens == (640, 1000)
    with pytest.raises(ValueError, match="frozen"):
        parsed.study = "other"  # type: ignore[misc]


WRONG = {
    # Unknown, missing, and of the wrong kind.
    "unknown section": (
        study(traning={}),
        "traning: unknown key; did you mean 'training'?; allowed: study, title,",
    ),
    "unknown key": (
        study(training__seq_length=3),
        "training.seq_length: unknown key; did you mean 'seq_len'?",
    ),
    "study not a mapping": ([], "(whole study): must be a mapping of keys to values"),
    "a fraction": (
        study(training__seq_len=1.5),
        "training.seq_len: must be a whole number (got 1.5)",
    ),
    "none of the literals": (
        study(training__precision="fp16"),
        "training.precision: must be 'fp32' or 'bf16'",
    ),
    # Ranges.
    "sgd without factor": (
        study(grid__0__optimizers=["adamw", "sgd"]),
        "grid.0.optimizers.1.lr_factor: missing",
    ),
    # Names.
    "study name": (
        study(study="a/b"),
        "study: must consist of letters, digits, '_', '.' and '-', and begin",
    ),
    "reserved study name": (
        study(study="runs"),
        "study: runs is taken; results/ also holds data, runs,",
    ),
    # Unions.
    "source kind": (
        study(data__source__kind="web"),
        "data.source.kind: 'web' is none of 'synthetic', 'files', 'own', 'hub'",
    ),
    "no source kind": (
        study(data__source={}),
        "data.source.kind: missing; one of 'synthetic', 'files', 'own', 'hub'",
    ),
    "optimizer": (
        study(grid__0__optimizers=["adamw", "adam"]),
        "grid.0.optimizers.1: 'adam' is none of 'adamw',",
    ),
    # A user's own optimizer.
    "path without a module": (
        with_lion(path="Lion"),
        "grid.0.optimizers.1.path: must be a module and what it defines, jo",
    ),
    "number as text": (
        with_lion(arguments={"eps": "1e-8"}),
        (
            "grid.0.optimizers.1.arguments.eps: '1e-8' is text to YAML, whose numbers have a point:"
            " write 1.0e-8, not 1e-8"
        ),
    ),
    "mu-loss of a mean that is zero": (
        with_lion(mu_centering=True, mu_loss=0.1),
        (
            "grid.0.optimizers.1.mu_loss: with mu_centering the mean is zero and adds nothing;"
            " leave out one of both"
        ),
    ),
    "learning rate as an argument": (
        with_lion(arguments={"lr": 1e-4}),
        (
            "grid.0.optimizers.1.arguments.lr: not among the arguments; it is the model's"
            " learning_rate times lr_factor"
        ),
    ),
    # Counts.
    "count": (
        study(grid__0__tokens=["1G"]),
        "grid.0.tokens.0: must be a whole number, or one with K, M, B or T",
    ),
    # Data.
    "word without synthetic": (
        study(data__source={"kind": "hub", "preset": "openwebtext"}),
        "data.tokenizer: 'word' goes with",
    ),
    "vocabulary below GPT-2": (
        study(
            data={
                "name": "o",
                "source": {"kind": "hub", "preset": "openwebtext"},
                "tokenizer": "gpt2",
                "vocab_size": 50000,
            }
        ),
        "data.vocab_size: 50000 < 50257, the number of GPT-2 tokens",
    ),
    "a cap of a generated language": (
        study(data__max_tokens=10**6),
        "data.max_tokens: a generated language has the",
    ),
    "hub without dataset": (
        study(data__source={"kind": "hub"}),
        "data.source.dataset: missing; give the name of a",
    ),
    # Models.
    "preset": (
        study(models=["gpt2-1x1"]),
        "models.0: no such preset; there are gpt2-125m, gpt2-355m, gpt2-760m,",
    ),
    # The grid.
    "unknown model": (
        study(grid__0__models=["m"]),
        "grid.0.models: m is not among the study's models gpt2-2x32,",
    ),
    "less than a batch": (
        study(grid__0__tokens=[63]),
        "grid.0.tokens: 63 is smaller than one batch of 64 tokens",
    ),
    "optimizer twice": (
        study(grid__0__optimizers=["coupled_adam", {"name": "coupled_adam", "scale_exponent": 0}]),
        "grid.0.optimizers: coupled_adam given more than once",
    ),
    "the study's own beta2 twice": (
        study(grid__0__optimizers=["adamw", {"name": "adamw", "beta2": 0.95}]),
        "grid.0.optimizers: adamw and adamw_b2-0.95 are the same in this study (beta1 = 0.9, beta2"
        " = 0.95, weight_decay = 0)",
    ),
    "the study's own weight decay twice": (
        study(grid__0__optimizers=["coupled_adam", {"name": "coupled_adam", "weight_decay": 0.0}]),
        "grid.0.optimizers: coupled_adam and coupled_adam_wd0 are the same in this study",
    ),
    "seed twice": (study(grid__0__seeds=[1, 2, 2]), "grid.0.seeds: 2 given more than once"),
    "table1 with three": (
        study(grid__0__optimizers=["adamw", "coupled_adam", {"name": "sgd", "lr_factor": 1}]),
        "grid.0.optimizers: table1 compares exactly 2, not 3; more go into table7",
    ),
    "table1 with one seed": (
        study(grid__0__seeds=[1]),
        "grid.0.seeds: table1 rests on a t-test and needs at least",
    ),
    # Sources.
    "no text": (
        study(
            data={
                "name": "f",
                "source": {"kind": "files"},
                "tokenizer": "gpt2",
                "vocab_size": 50304,
            }
        ),
        "paths.text: missing; the source 'files' needs folders, files or globs",
    ),
    "no tokenizer file": (
        study(
            data={"name": "f", "source": {"kind": "files"}, "tokenizer": "file", "vocab_size": 99},
            paths={"text": "folder"},
        ),
        "paths.tokenizer: missing; data.tokenizer 'file' needs a tokenizer.json",
    ),
    "synthetic sets for real text": (
        study(
            data={
                "name": "f",
                "source": {"kind": "files"},
                "tokenizer": "gpt2",
                "vocab_size": 50304,
            },
            paths={"text": "folder"},
            evaluation={"word_similarity": "synthetic"},
        ),
        "evaluation: 'synthetic' sets exist for the data source 'synthetic' only",
    ),
    "true for a whole number": (
        study(training__seq_len=True),
        "training.seq_len: must be a whole number (got 'true')",
    ),
    "tokens too many": (
        study(grid__0__tokens=[{"steps": 2**40}], training__seq_len=2**24),
        "grid.0.tokens.0: 1,099,511,627,776 steps are 7.4e+19 tokens, more than 1e+18; lower them",
    ),
    "a title of two lines": (
        study(title="a\nb"),
        "title: must be one line without control or other invisible characte",
    ),
    "a hidden label": (
        with_lion(label="_x"),
        "grid.0.optimizers.1.label: must not be empty or begin with '_': figures",
    ),
    "one key for two optimizers": (
        study(
            grid=[
                {
                    "models": ["gpt2-2x32"],
                    "tokens": [640],
                    "optimizers": [{"name": "sgd", "lr_factor": factor}],
                }
                for factor in (100, 100.00001)
            ]
        ),
        (
            "grid.1.optimizers: sgd_f100 stands for two different settings, and results tell"
            " optimizers apart by it; make"
        ),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_setting_is_one_line_that_names_place_and_remedy(case):
    values, expected = WRONG[case]
    lines = errors(values)
    assert len(lines) == 1
    assert lines[0].startswith(expected)


WRONG_TABLES = {
    "no table": (
        study(grid__0__table="table3"),
        (
            "grid.0.table: table3 is no table; there are table1, table2, table7, and others are"
            " declared under `tables`"
        ),
    ),
    "table without a title": (
        own_table(title=None),
        "tables.mine.title: missing; a study's own table needs title, ",
    ),
    "a column that no stage measures": (
        own_table(columns=["loss", "cosine", "head_gradient_sum"]),
        (
            "tables.mine.columns: cosine, head_gradient_sum is nothing that this study measures;"
            " there are loss, "
        ),
    ),
    "table without a block": (
        study(tables={"mine": OWN_TABLE}),
        (
            "tables.mine: no block of the grid has `table: mine`; give it to one, or leave this"
            " table out"
        ),
    ),
    "another comparison for a table of the paper": (
        study(tables={"table1": {"comparison": "each_other"}}),
        (
            "tables.table1.comparison: each_other, but table1 of the paper is pair; give the table"
            " another name"
        ),
    ),
}


@pytest.mark.fault(
    "settings",
    "A table of the study's own lacks its title, columns or comparison, names a metric that nothing"
    " measures, or has no block.",
    "The start is refused with the field, where the last job, the report, would fail after all"
    " training.",
)
@pytest.mark.parametrize("case", WRONG_TABLES)
def test_a_table_that_cannot_be_made(case):
    values, expected = WRONG_TABLES[case]
    (line,) = errors(values)
    assert line.startswith(expected)


def test_a_table_of_its_own_and_another_look_for_one_of_the_paper():
    own = parse_study(own_table(columns=["acc", "loss"])).tables_of_blocks["mine"]
    assert own == Table("mine", "Mine", "each_other", ("acc", "loss"))
    changed = parse_study(study(tables={"table1": {"title": "First", "columns": ["loss"]}}))
    assert changed.tables_of_blocks == {"table1": Table("table1", "First", "pair", ("loss",))}


def test_a_table_of_the_paper_has_the_columns_that_the_study_measures():
    (table,) = parse_study(study(evaluation={"downstream": None})).tables_of_blocks.values()
    assert table.columns == (
        "loss",
        "isotropy",
        "mean_norm",
        "mean_norm_ratio",
        "r_bar",
        "rho",
        "kappa",
    )


@pytest.mark.fault(
    "settings",
    "a warmup takes the whole run, or with schedule `wsd` leaves no room for the decay, or the"
    " decay is one step",
    "it is refused with its place in the grid",
)
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"training__warmup_steps": 10},
            (
                "grid.0.tokens.0: the warmup of 10 steps (training.warmup_steps) takes all 10 steps"
                " of the run, which never reaches its learning rate; lower it, or train for longer"
            ),
        ),
        (
            {"training__warmup_fraction": 0.95},
            (
                "grid.0.tokens.0: the warmup of 10 steps (training.warmup_fraction) takes all 10"
                " steps of the run"
            ),
        ),
        (
            {"training__schedule": "wsd", "training__decay_fraction": 0.6},
            (
                "grid.0.tokens.0: the warmup of 5 steps (training.warmup_steps) and the decay of 6"
                " (training.decay_fraction) are more than the 10 steps of the run; lower one, or"
                " train for longer"
            ),
        ),
        (
            {"training__schedule": "wsd", "training__decay_fraction": 0.1},
            (
                "grid.0.tokens.0: a decay of 1 of the 10 steps of the run (training.decay_fraction)"
                " never lowers the learning rate, since a decay begins at the peak; raise it, or"
                " train for longer"
            ),
        ),
    ],
)
def test_a_run_that_never_reaches_its_learning_rate(changes, expected):
    line = errors(study(**changes))[0]
    assert line.startswith(expected)


@pytest.mark.fault(
    "settings",
    "a number is out of all bounds: a seed of 2^64, a million threads, a name of 300 letters",
    "it is refused with field and bound",
)
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            study(grid__0__optimizers=["adamw", {"name": "coupled_adam", "scale_exponent": 100}]),
            "grid.0.optimizers.1.scale_exponent: must be less than or equal to 20 (got 100)",
        ),
        (
            study(grid__0__seeds=[1, 2**64]),
            "grid.0.seeds.1: must be less than 9223372036854775808 (got 1844674407370955",
        ),
        (
            study(execution={"train_threads": 10**6}),
            "execution.train_threads: must be less than or equal to 1024 (got",
        ),
        (study(study="x" * 300), "study: must have at most 64 characters (got 'xxxx"),
    ],
)
def test_numbers_and_names_have_bounds(values, expected):
    (line,) = errors(values)
    assert line.startswith(expected)


@pytest.mark.fault(
    "settings",
    "`columns: [0, 1]` of a word-similarity set, a set without a file, a task without a name",
    "it is refused with the field before the first job; the last one trained everything first",
)
@pytest.mark.parametrize(
    ("evaluation", "expected"),
    [
        (
            {"word_similarity": [{"name": "a", "file": "f", "columns": [0, 1]}]},
            "word_similarity.0.columns.2: missing",
        ),
        (
            {"word_similarity": [{"name": "a", "file": "f", "columns": [0, 1, 1]}]},
            "word_similarity.0.columns: 0, 1, 1 must",
        ),
        (
            {"word_similarity": [{"name": "a", "file": ""}]},
            "word_similarity.0.file: must have at least 1",
        ),
        ({"downstream": {"tasks": [""]}}, "downstream.tasks.0: must have at least 1 character"),
    ],
)
def test_evaluations_that_cannot_be_made(evaluation, expected):
    (line,) = errors(study(evaluation=evaluation))
    assert line.startswith(f"evaluation.{expected}")


@pytest.mark.parametrize("downstream", [None, {"tasks": []}, {"tasks": [], "limit": 3}])
def test_no_downstream_tasks_is_no_downstream_stage(downstream):
    of_study = parse_study(study(evaluation={"downstream": downstream}))
    assert of_study.evaluation.downstream is None
    assert "downstream" not in {stage.name for stage in of_study.stages}
    (line,) = errors(study(evaluation={"downstream": {"tasks": [], "limits": 3}}))
    assert line.startswith("evaluation.downstream.limits: unknown key")


def test_all_wrong_settings_are_listed_at_once():
    lines = errors(
        study(training__beta1=2, training__eps="x", grid__0__seeds=["a", "b"], titel="x")
    )
    assert [line.split(":")[0] for line in lines] == [
        "training.beta1",
        "training.eps",
        "grid.0.seeds.0",
        "grid.0.seeds.1",
        "titel",
    ]


@pytest.mark.fault(
    "settings",
    "Several settings do not go with others, in several sections.",
    "Each has its line.",
)
def test_all_that_does_not_go_together_is_listed_at_once():
    source = {"name": "a", "source": {"kind": "files"}, "tokenizer": "file", "vocab_size": 300}
    given = study(
        data=source, grid__0__models=["other"], grid__0__seeds=[1, 1], execution__train_processes=5
    )
    assert [line.split(":")[0] for line in errors(given)] == [
        "grid.0.models",
        "grid.0.seeds",
        "execution.train_processes",
        "paths.text",
        "paths.tokenizer",
    ]
    wrong = OWN_TABLE | {"columns": ["loss", "nothing", "loss"]}
    assert [line.split(":")[0] for line in errors(study(data=source, tables={"mine": wrong}))] == [
        "tables.mine.columns",
        "tables.mine.columns",
        "tables.mine",
        "paths.text",
        "paths.tokenizer",
    ]


def test_no_message_shows_the_names_of_python_classes():
    shown = "\n".join(
        line for values, _ in (WRONG | WRONG_TABLES).values() for line in errors(values)
    )
    for word in (
        "tuple",
        "Tuple",
        "Input",
        "pydantic",
        "function-",
        "instance",
        "dictionary",
        "literal[",
    ):
        assert word not in shown


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("640", 640),
        ("200K", 200_000),
        ("1.5M", 1_500_000),
        ("20B", 20 * 10**9),
        ("1T", 10**12),
        (" 5 M ", 5_000_000),
        ("2.3M", 2_300_000),
        ("1.001K", 1001),
        ("0.29K", 290),  # not exact as binary floats
    ],
)
def test_counts_are_read_exactly(text, count):
    assert parse_count(text) == count
    assert isinstance(parse_count(text), int)


def test_a_hub_preset_can_be_refined():
    source = {"kind": "hub", "preset": "openwebtext", "revision": "abc"}
    data = {"name": "o", "source": source, "tokenizer": "gpt2", "vocab_size": 50304}
    parsed = parse_study(study(data=data)).data.source
    assert (parsed.dataset, parsed.revision) == ("Skylion007/openwebtext", "abc")
    assert parsed.places == (Place("Skylion007/openwebtext", "abc"),)


def test_a_cap_that_holds_the_largest_run_to_the_token():
    source = {"kind": "hub", "preset": "openwebtext"}
    data = {
        "name": "o",
        "source": source,
        "tokenizer": "gpt2",
        "vocab_size": 50304,
        "max_tokens": 1024,
    }
    data["split"] = {"val_fraction": 0.125, "test_fraction": 0.25}  # leaves 640
    parse_study(study(data=data, grid__0__tokens=[640]))
    with pytest.raises(
        ValueError, match=r"data\.max_tokens: 1,023 leaves 639 .* trains on 640; set at least 1,024"
    ):
        parse_study(study(data=data | {"max_tokens": 1023}, grid__0__tokens=[640]))


def test_a_users_own_optimizer_survives_its_own_json_with_its_types():
    arguments = {
        "betas": [0.9, 0.99],
        "foreach": False,
        "d_coef": 1,
        "eps": 1.0,
        "mode": "x",
        "beta3": None,
    }
    parsed = parse_study(with_lion(arguments=arguments))
    _, lion = parsed.grid[0].optimizers
    assert lion.arguments == arguments | {"betas": (0.9, 0.99)}
    assert [type(value) for value in lion.arguments.values()] == [
        tuple,
        bool,
        int,
        float,
        str,
        type(None),
    ]
    again = parse_study(parsed.model_dump(mode="json"))
    assert again == parsed
    assert list(map(type, again.grid[0].optimizers[1].arguments.values())) == list(
        map(type, lion.arguments.values())
    )


def test_n_params_agrees_with_transformers_gpt2():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = Model(**MODEL_PRESETS["gpt2-2x32"])
    settings = transformers.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2
    )
    with torch.device("meta"):
        reference = transformers.GPT2LMHeadModel(settings)
    without_biases = sum(
        p.numel() for name, p in reference.named_parameters() if not name.endswith("bias")
    )
    assert model.n_params(vocab_size=64, seq_len=16) == without_biases
