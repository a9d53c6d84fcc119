"""Protocols: presets for the settings on which the authors' code, the paper's text and correct practice disagree.

``LEDGER`` is the only list of these settings; the presets, a study's protocol label and the table in docs/protocols.md
are made from it. Marks: [P] is stated in the paper; [C] was read in the authors' code, which is flxst/coupled-adam and,
where named, danielbis/tooMuchInCommon for the metrics of embeddings.
"""

import json
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal, get_args

from coupled_adam_bench.store.files import write_text

Protocol = Literal["official", "paper", "corrected"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)

LEDGER_FILE = Path("docs/protocols.md")
_BEGIN = "<!-- ledger: begin; written by `make schema` from config/protocols.py -->"
_END = "<!-- ledger: end -->"


@dataclass(frozen=True)
class Point:
    """A row of the ledger: a setting and its value under each protocol.

    ``paper`` is None where the text is silent; the protocol ``paper`` then takes the value of ``corrected``. A row
    without a ``field`` is a difference that no setting controls: ``corrected`` says what every protocol does, ``note``
    what the authors' code did.
    """

    name: str
    field: str | None
    official: Any
    paper: Any
    corrected: Any
    source: str
    note: str
    only_with: tuple[str, Any] | None = None
    """Another setting and the value that it must have for this setting to matter."""

    def value(self, protocol: Protocol) -> Any:
        """Return the setting's value under a protocol."""
        value = getattr(self, protocol)
        return self.corrected if value is None else value


_PER_RANK = ("training.data_order", "per_rank")
_RANDOM = ("evaluation.test_loss.windows", "random")

LEDGER = (
    Point(
        "weight decay of the tied embedding",
        "training.embedding_weight_decay", 0.0, 0.1, 0.0,
        "[C] nanoGPT/train.py, `embdecay`; [P] weight decay 0.1",
        "The authors' code does so for all optimizers. The position embedding decays in both.",
    ),
    Point(
        "learning rate of the first step",
        "training.warmup_from", "zero", None, "first_step",
        "[C] nanoGPT/train.py, `get_lr`",
        "In a warmup of w steps, the authors' step t, counted from 0, has the rate peak t / w, so the first step "
        "changes no weight; ours has peak (t + 1) / (w + 1).",
    ),
    Point(
        "streams of training batches",
        "training.data_order", "per_rank", None, "with_replacement",
        "[C] nanoGPT/train.py, `get_batch`",
        "The authors' rank r draws from a generator with the seed seed + r, so neighbouring seeds share most of their "
        "text, and the spread over seeds may be understated. Our batches are independent between seeds and the same "
        "for any number of processes.",
    ),
    Point(
        "number of streams of training batches",
        "training.data_ranks", 4, None, 4,
        "[C] nanoGPT/config, 4 GPUs",
        "",
        only_with=_PER_RANK,
    ),
    Point(
        "text of the test loss",
        "evaluation.test_loss.split", "val", "test", "test",
        "[C] nanoGPT/train.py, `estimate_loss`; [P] test loss",
        "The authors' data has no third split.",
    ),
    Point(
        "windows of the test loss",
        "evaluation.test_loss.windows", "random", None, "all",
        "[C] nanoGPT/train.py, `get_batch`",
        "Random offsets depend on the seed; our windows predict every token but the first exactly once.",
    ),
    Point(
        "batches of random windows",
        "evaluation.test_loss.n_batches", 2000, None, 2000,
        "[C] nanoGPT/config/script_create_config_val.py",
        "",
        only_with=_RANDOM,
    ),
    Point(
        "windows in a batch of random windows",
        "evaluation.test_loss.batch_sequences", 12, None, 12,
        "[C] nanoGPT/config",
        "",
        only_with=_RANDOM,
    ),
    Point(
        "windows in a batch of random windows, by model",
        "evaluation.test_loss.batch_sequences_of", {"gpt2-760m": 6}, None, {},
        "[C] nanoGPT/config, the six files of 760M",
        "The authors' 760M test losses use half as many windows. A study's own entries are added to the protocol's.",
        only_with=_RANDOM,
    ),
    Point(
        "words of the similarity sets",
        "evaluation.leading_space", False, None, True,
        "[C] tooMuchInCommon, src/utils.py",
        "The authors' code adds a space only if the tokenizer's path contains `gpt2`, which their paths do not. They "
        "keep 641 / 16 / 261 / 68 / 74 pairs of MEN / RW / SimLex / WS-sim / WS-rel, so a fifth of r-bar may rest on "
        "16 pairs; we keep 2486 / 354 / 968 / 184 / 238.",
    ),
    Point(
        "Iso",
        "evaluation.isotropy", "eig_float32", None, "both_signs",
        "[C] tmic/src/isotropy.py",
        "`eig` gives each eigenvector an arbitrary sign, on which Iso depends; the authors round to 4 decimals. We use "
        "float64, `eigh` and both signs, so our value is at most the authors'.",
    ),
    Point(
        "prompts of the downstream tasks",
        "evaluation.downstream.task_versions", "0.4.3", None, "installed",
        "[C] lm-evaluation-harness v0.4.3",
        "race 2.0 keeps only the last five characters of an earlier fill-in question, and 3.0 keeps all but these: 623 "
        "of 1,045 prompts differ. truthfulqa_mc2 2.0 takes the answers before the first false one as the true ones, "
        "and 3.0 reads each label: 2 of 817 items differ. The other five tasks are the same.",
    ),
    Point(
        "precision of the downstream tasks",
        "evaluation.downstream.precision", "fp32", None, "fp32",
        "[C] lm-evaluation-harness, run without a dtype",
        "A CPU always computes in fp32.",
    ),
    Point(
        "offsets of random windows",
        None, None, None, "drawn from a generator seeded with the cell's seed",
        "[C] nanoGPT/train.py",
        "The authors' generator first drew the model's initial values, so their exact offsets are not reproduced.",
    ),
    Point(
        "offsets of `per_rank`",
        None, None, None, "the streams draw nothing else",
        "[C] nanoGPT/train.py",
        "The authors' streams also drew the initial values, and rank 0's drew the batches of each evaluation. Their "
        "seeds 1-2 and 2-3 share about half of their text and 1-3 a quarter (derived, not measured); here the shares "
        "are three quarters and half.",
    ),
    Point(
        "precision of the test loss",
        None, None, None, "`training.precision` on a GPU, fp32 on a CPU",
        "[C] nanoGPT/train.py",
        "The authors use bf16 on a GPU, which is the same for bf16 studies.",
    ),
    Point(
        "documents of the splits",
        None, None, None, "by a hash of their text (`data.split`)",
        "[C] nanoGPT data preparation",
        "The authors draw 0.0005 of OpenWebText's documents with seed 2357: other documents of the same text.",
    ),
    Point(
        "all-but-the-top",
        None, None, None, "floor(D / 100) directions, at least 1",
        "[C] tmic/src",
        "The authors remove ceil(D / 100) for Iso and 2 for r-bar. No table has it.",
    ),
    Point(
        "lm-evaluation-harness",
        None, None, None, "the version in `constraints.txt`",
        "[C] v0.4.3",
        "The prompts and scores of the paper's tasks are a setting (see above). The stage `downstream` records the "
        "versions of harness and tasks in its evaluation.",
    ),
    Point(
        "resume",
        None, None, None, "bit for bit on a CPU",
        "[C] nanoGPT/train.py",
        "The authors' code saves no generator state, so a resumed run sees its first batches again.",
    ),
    Point(
        "state of Coupled Adam",
        None, None, None, "one row, the mean over the vocabulary",
        "[C] nanoGPT/coupled_adam.py",
        "The authors keep the whole matrix and average it into a copy at each step. The numbers are the same, since "
        "averaging commutes with the moving average.",
    ),
    Point(
        "where Coupled Adam couples",
        None, None, None, "on every device, and in shards",
        "[C] nanoGPT/coupled_adam.py",
        "The authors' code couples only on the foreach path of CUDA: single-tensor and fused raise an error, amsgrad "
        "and capturable do not couple.",
    ),
)  # fmt: skip

SETTINGS = {point.field: point for point in LEDGER if point.field is not None}


def preset(protocol: Protocol) -> dict[str, Any]:
    """Return the settings of a protocol as nested sections of a study."""
    values: dict[str, Any] = {}
    for field, point in SETTINGS.items():
        *sections, name = field.split(".")
        reduce(lambda section, key: section.setdefault(key, {}), sections, values)[name] = point.value(protocol)
    return values


def with_defaults(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of ``values`` in which missing keys are taken from ``defaults``, section by section."""
    filled = {**defaults, **values}
    for key, default in defaults.items():
        if isinstance(default, dict) and isinstance(filled[key], dict):
            filled[key] = with_defaults(filled[key], default)
    return filled


def departing_settings(study: Any, protocol: Protocol) -> dict[str, Any]:
    """Return the settings of ``study`` that differ from a protocol and have an effect, by field."""

    def setting(field: str) -> Any:
        return reduce(getattr, field.split("."), study)

    return {
        field: setting(field)
        for field, point in SETTINGS.items()
        if setting(field) != point.value(protocol)
        and (point.only_with is None or setting(point.only_with[0]) == point.only_with[1])
    }


def as_yaml(value: Any) -> str:
    """Return a setting's value as a study file has it."""
    return json.dumps(value, sort_keys=True).strip('"')


def ledger_markdown() -> str:
    """Return the ledger as a Markdown table."""
    lines = ["| point | setting | `official` | `paper` | `corrected` | source | note |", "|" + "---|" * 7]
    for point in LEDGER:
        if point.field is None:
            cells = ["", "as `corrected`", "as `corrected`", point.corrected]
        else:
            official, paper, corrected = (f"`{as_yaml(point.value(protocol))}`" for protocol in PROTOCOLS)
            cells = [f"`{point.field}`", official, paper + (" (silent)" if point.paper is None else ""), corrected]
        only = f"Only with `{point.only_with[0]}: {point.only_with[1]}`." if point.only_with else ""
        row = [point.name, *cells, point.source, " ".join(filter(None, (only, point.note)))]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def write_ledger(path: Path = LEDGER_FILE) -> None:
    """Write the ledger between the two markers of a Markdown file; raise ``ValueError`` if one is missing."""
    text = path.read_text(encoding="utf-8")
    if text.count(_BEGIN) != 1 or text.count(_END) != 1:
        raise ValueError(f"{path}: needs the lines {_BEGIN!r} and {_END!r} once each, around the ledger")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    write_text(path, f"{before}{_BEGIN}\n\n{ledger_markdown()}\n{_END}{after}")
