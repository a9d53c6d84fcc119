"""Protocols: presets for the settings on which the authors' code, the paper's text and correct
practice disagree.

``LEDGER`` is the only list of these settings; docs/protocols.md says why they differ. Marks: [P] is
stated in the paper; [C] was read in the authors' code, which is flxst/coupled-adam and, where
named, danielbis/tooMuchInCommon for the metrics of embeddings.
"""

import json
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter
from typing import Any, Literal, get_args

Protocol = Literal["official", "paper", "corrected"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)


@dataclass(frozen=True)
class Point:
    """A setting's value under each protocol.

    ``paper`` is None where the text is silent; the protocol ``paper`` then takes the value of
    ``corrected``.
    """

    official: Any
    paper: Any
    corrected: Any
    only_with: tuple[str, Any] | None = None
    """Another setting and the value that it must have for this setting to matter."""

    def value(self, protocol: Protocol) -> Any:
        """Return the setting's value under a protocol."""
        value = getattr(self, protocol)
        return self.corrected if value is None else value


_PER_RANK = ("training.data_order", "per_rank")
_RANDOM = ("evaluation.test_loss.windows", "random")

LEDGER = {
    # [C] nanoGPT/train.py, `embdecay`; [P] weight decay 0.1
    "training.embedding_weight_decay": Point(0.0, 0.1, 0.0),
    # [C] nanoGPT/train.py, `get_lr`
    "training.warmup_from": Point("zero", None, "first_step"),
    # [C] nanoGPT/train.py, `get_batch`, on 4 GPUs (nanoGPT/config)
    "training.data_order": Point("per_rank", None, "with_replacement"),
    "training.data_ranks": Point(4, None, 4, only_with=_PER_RANK),
    # [C] nanoGPT/train.py, `estimate_loss`; [P] test loss
    "evaluation.test_loss.split": Point("val", "test", "test"),
    # [C] nanoGPT/train.py, `get_batch`; its numbers: nanoGPT/config and script_create_config_val.py
    # there
    "evaluation.test_loss.windows": Point("random", None, "all"),
    "evaluation.test_loss.n_batches": Point(2000, None, 2000, only_with=_RANDOM),
    "evaluation.test_loss.batch_sequences": Point(12, None, 12, only_with=_RANDOM),
    "evaluation.test_loss.batch_sequences_of": Point({"gpt2-760m": 6}, None, {}, only_with=_RANDOM),
    # [C] tooMuchInCommon, src/utils.py
    "evaluation.leading_space": Point(False, None, True),
    # [C] nanoGPT/analysis/isotropy.py
    "evaluation.isotropy": Point("eig_float32", None, "both_signs"),
    # [C] lm-evaluation-harness v0.4.3, run without a dtype
    "evaluation.downstream.task_versions": Point("0.4.3", None, "installed"),
    "evaluation.downstream.precision": Point("fp32", None, "fp32"),
}


def preset(protocol: Protocol) -> dict[str, Any]:
    """Return the settings of a protocol as nested sections of a study."""
    values: dict[str, Any] = {}
    for field, point in LEDGER.items():
        *sections, name = field.split(".")
        reduce(lambda section, key: section.setdefault(key, {}), sections, values)[name] = (
            point.value(protocol)
        )
    return values


def with_defaults(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of ``values`` in which missing keys are taken from ``defaults``, section by
    section."""
    filled = {**defaults, **values}
    for key, default in defaults.items():
        if isinstance(default, dict) and isinstance(filled[key], dict):
            filled[key] = with_defaults(filled[key], default)
    return filled


def departing_settings(study: Any, protocol: Protocol) -> dict[str, Any]:
    """Return the settings of ``study`` that differ from a protocol and have an effect, by field."""

    def setting(field: str) -> Any:
        return reduce(getattr, field.split("."), study)

    departing = {}
    for field, point in LEDGER.items():
        if setting(field.rpartition(".")[0]) is None:
            continue  # a stage may be left out
        has_effect = point.only_with is None or setting(point.only_with[0]) == point.only_with[1]
        if has_effect and setting(field) != point.value(protocol):
            departing[field] = setting(field)
    return departing


def as_yaml(value: Any) -> str:
    """Return a setting's value as it stands in a study file, a class of the study's own as its
    path."""
    return json.dumps(value, sort_keys=True, default=attrgetter("path")).strip('"')
