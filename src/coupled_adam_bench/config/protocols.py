"""Protocols: presets of the settings at which the authors' code, the text of the paper and what is right part.

``LEDGER`` is the one list of these points; the presets, the label of a study and the table in docs/protocols.md are
made from it. Marks: [P] stated by the paper, [C] read in the authors' code (flxst/coupled-adam and, where named,
danielbis/tooMuchInCommon, from which it measures embeddings).
"""

import json
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal, get_args

from coupled_adam_bench.files import write_text

Protocol = Literal["official", "paper", "corrected"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)

LEDGER_FILE = Path("docs/protocols.md")
_BEGIN = "<!-- ledger: begin; written by `make schema` from config/protocols.py -->"
_END = "<!-- ledger: end -->"


@dataclass(frozen=True)
class Point:
    """A row of the ledger: a setting and its value under each protocol, or without ``field`` a fact in words.

    ``paper`` is None where the text is silent and the protocol ``paper`` does as ``corrected``. A point without a field
    has one form, ``corrected``, under every protocol; ``note`` says what the authors' code did.
    """

    name: str
    field: str | None
    official: Any
    paper: Any
    corrected: Any
    source: str
    note: str
    only_with: tuple[str, Any] | None = None
    """Another setting and the value without which this one changes nothing."""

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
        "In the authors' code for all optimizers. The position embedding decays, there and here.",
    ),
    Point(
        "learning rate of the first step",
        "training.warmup_from", "zero", None, "first_step",
        "[C] nanoGPT/train.py, `get_lr`",
        "Step t of the warmup w, from 0: peak t / w, so the first step moves no weight; ours peak (t + 1) / (w + 1).",
    ),
    Point(
        "streams of training batches",
        "training.data_order", "per_rank", None, "with_replacement",
        "[C] nanoGPT/train.py, `get_batch`",
        "Rank r draws from a generator seeded seed + r, so neighbouring seeds share most of their text and the spread "
        "over seeds may be understated; ours are independent between seeds, whatever number of processes trains.",
    ),
    Point(
        "number of these streams",
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
        "Random offsets depend on the seed; ours predict each token but the first once.",
    ),
    Point(
        "batches of random windows",
        "evaluation.test_loss.n_batches", 2000, None, 2000,
        "[C] nanoGPT/config/script_create_config_val.py",
        "",
        only_with=_RANDOM,
    ),
    Point(
        "windows of such a batch",
        "evaluation.test_loss.batch_sequences", 12, None, 12,
        "[C] nanoGPT/config",
        "",
        only_with=_RANDOM,
    ),
    Point(
        "words of the similarity sets",
        "evaluation.leading_space", False, None, True,
        "[C] tooMuchInCommon, src/utils.py",
        "A space only if the tokenizer's path contains `gpt2`, as the authors' paths do not: they keep "
        "641 / 16 / 261 / 68 / 74 pairs of MEN / RW / SimLex / WS-sim / WS-rel, so a fifth of r-bar may rest on 16; "
        "ours 2486 / 354 / 968 / 184 / 238.",
    ),
    Point(
        "Iso",
        "evaluation.isotropy", "eig_float32", None, "both_signs",
        "[C] tmic/src/isotropy.py",
        "`eig` gives each eigenvector with an arbitrary sign, which Iso depends on; rounded to 4 decimals. Ours: "
        "float64, `eigh`, both signs, so it is at most theirs.",
    ),
    Point(
        "offsets of random windows",
        None, None, None, "drawn from a generator seeded with the cell's seed",
        "[C] nanoGPT/train.py",
        "Theirs drew the model's initial values before, so their very offsets are not reproduced.",
    ),
    Point(
        "offsets of `per_rank`",
        None, None, None, "the streams draw nothing else",
        "[C] nanoGPT/train.py",
        "Theirs drew the initial values too, and rank 0's the batches of each evaluation: seeds 1-2 and 2-3 have about "
        "half of their text in common and 1-3 a quarter (derived, not measured), here three quarters and half.",
    ),
    Point(
        "precision of the test loss",
        None, None, None, "`training.precision` on a GPU, fp32 on a CPU",
        "[C] nanoGPT/train.py",
        "Theirs bf16 on a GPU: the same for bf16 studies.",
    ),
    Point(
        "documents of the splits",
        None, None, None, "by a hash of their text (`data.split`)",
        "[C] nanoGPT data preparation",
        "Theirs 0.0005 of OpenWebText's documents, drawn with seed 2357: other documents of the same text.",
    ),
    Point(
        "all-but-the-top",
        None, None, None, "floor(D / 100) directions, at least 1",
        "[C] tmic/src",
        "Theirs ceil(D / 100) for Iso, 2 for r-bar. In no table.",
    ),
    Point(
        "downstream tasks",
        None, None, None, "lm-evaluation-harness of `constraints.txt`",
        "[C] v0.4.3",
        "Versions of harness and tasks are in `lm_eval.json`.",
    ),
    Point(
        "resume",
        None, None, None, "bit for bit on a CPU",
        "[C] nanoGPT/train.py",
        "Theirs saves no generator state: a resumed run sees its first batches again.",
    ),
    Point(
        "state of Coupled Adam",
        None, None, None, "one row, the mean over the vocabulary",
        "[C] nanoGPT/coupled_adam.py",
        "Theirs the whole matrix, averaged into a copy each step: the same numbers, as averaging commutes with the "
        "moving average.",
    ),
    Point(
        "where Coupled Adam couples",
        None, None, None, "on every device, and in shards",
        "[C] nanoGPT/coupled_adam.py",
        "Theirs on the foreach path of CUDA only: single-tensor and fused raise, amsgrad and capturable do not couple.",
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


def fill(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return ``values`` with what is not given taken from ``defaults``, section by section; neither is changed."""
    filled = {**defaults, **values}
    for key, default in defaults.items():
        if isinstance(default, dict) and isinstance(filled[key], dict):
            filled[key] = fill(filled[key], default)
    return filled


def departures(study: Any, protocol: Protocol) -> dict[str, Any]:
    """Return the settings in which ``study`` differs from a protocol, by field; those that change nothing left out."""

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
    return json.dumps(value).strip('"')


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
    """Write the ledger between the two markers of a Markdown file; ``ValueError`` if it has not both."""
    text = path.read_text(encoding="utf-8")
    if text.count(_BEGIN) != 1 or text.count(_END) != 1:
        raise ValueError(f"{path}: needs the lines {_BEGIN!r} and {_END!r} once, around the place of the ledger")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    write_text(path, f"{before}{_BEGIN}\n\n{ledger_markdown()}\n{_END}{after}")
