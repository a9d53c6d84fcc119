"""Protocols: what each sets, that it sets nothing else, and that the ledger in the documentation
says the same."""

import re
from pathlib import Path
from typing import Any

import pytest
from planned import Planned

from coupled_adam_bench.study.settings import EvaluationSettings, Study, Training, parse_study
from coupled_adam_bench.study.settings.protocols import (
    LEDGER,
    PROTOCOLS,
    as_yaml,
    preset,
)


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by dotted name, and settings that are mappings
    themselves whole."""
    if not isinstance(values, dict) or prefix[1:] in LEDGER:
        return {prefix[1:]: values}
    return {
        name: leaf
        for key, value in values.items()
        for name, leaf in flat(value, f"{prefix}.{key}").items()
    }


def parsed(tiny_study: Any, protocol: str | None = None, **sections: dict[str, Any]) -> Study:
    """Return the tiny study with settings added to its sections."""
    values = tiny_study(**({} if protocol is None else {"protocol": protocol}))
    for name, settings in sections.items():
        values[name] = {**values[name], **settings}
    return parse_study(values)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_study_has_the_values_of_the_ledger(tiny_study, protocol):
    found = flat(parsed(tiny_study, protocol).model_dump())
    for field, point in LEDGER.items():
        assert found[field] == point.value(protocol)
        assert type(found[field]) is type(point.value(protocol))


def test_protocols_differ_in_nothing_but_the_ledger(tiny_study):
    dumps = [flat(parsed(tiny_study, protocol).model_dump()) for protocol in PROTOCOLS]
    differing = {
        name for dump in dumps for name in dump if len({repr(other[name]) for other in dumps}) > 1
    }
    assert differing == {
        "protocol",
        *(
            name
            for name, point in LEDGER.items()
            if len({repr(point.value(protocol)) for protocol in PROTOCOLS}) > 1
        ),
    }


def test_corrected_is_the_default_and_what_the_classes_say(tiny_study):
    study = parsed(tiny_study)
    assert study == parsed(tiny_study, "corrected")
    evaluation = EvaluationSettings().model_dump(exclude={"word_similarity", "metrics"})
    evaluation["downstream"] = {
        name: evaluation["downstream"][name] for name in ("task_versions", "precision")
    }
    assert preset("corrected") == {
        "training": {name: getattr(Training(), name) for name in preset("corrected")["training"]},
        "evaluation": evaluation,
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_the_study_says_wins(tiny_study, protocol):
    training = {"embedding_weight_decay": 0.3, "warmup_from": "zero"}
    evaluation = {"test_loss": {"split": "val", "n_batches": 7}, "leading_space": True}
    study = parsed(tiny_study, protocol, training=training, evaluation=evaluation)
    assert (study.training.embedding_weight_decay, study.training.warmup_from) == (0.3, "zero")
    assert (study.evaluation.test_loss.split, study.evaluation.test_loss.n_batches) == ("val", 7)
    assert study.evaluation.leading_space is True
    # The rest of the same sections is still the protocol's.
    assert study.evaluation.test_loss.windows == LEDGER["evaluation.test_loss.windows"].value(
        protocol
    )
    assert study.training.data_order == LEDGER["training.data_order"].value(protocol)


def test_sections_may_be_left_out_and_wrong_ones_are_refused(tiny_study):
    values = {
        name: section
        for name, section in tiny_study(protocol="official").items()
        if name != "evaluation"
    }
    assert parse_study(values).evaluation.isotropy == "eig_float32"
    with pytest.raises(
        ValueError, match=r"training: must be a mapping of keys to values \(got None\)"
    ):
        parse_study(values | {"training": None})
    with pytest.raises(ValueError, match=r"evaluation\.test_loss: must be a mapping"):
        parse_study(values | {"evaluation": {"test_loss": "val"}})
    for wrong in ("oficial", 3, None, ["official"]):
        with pytest.raises(
            ValueError, match="protocol: must be 'official', 'paper' or 'corrected'"
        ):
            parse_study(tiny_study(protocol=wrong))


@pytest.mark.parametrize(
    ("protocol", "sections", "label"),
    [
        (
            "corrected",
            {"training": {"embedding_weight_decay": 0.1}},
            "corrected; training.embedding_weight_decay = 0.1",
        ),
        (
            "official",
            {"evaluation": {"leading_space": True}, "training": {"warmup_from": "first_step"}},
            "official; training.warmup_from = first_step; evaluation.leading_space = true",
        ),
        # Settings of a choice that is not taken change nothing.
        (
            "corrected",
            {"evaluation": {"test_loss": {"n_batches": 5}}, "training": {"data_ranks": 2}},
            "corrected",
        ),
        (
            "corrected",
            {"evaluation": {"test_loss": {"n_batches": 5, "windows": "random"}}},
            "corrected; evaluation.test_loss.windows = random; evaluation.test_loss.n_batches = 5",
        ),
        # A mapping is filled with the protocol's entries, and named whole, whatever their order.
        (
            "official",
            {"evaluation": {"test_loss": {"batch_sequences_of": {"gpt2-760m": 6}}}},
            "official",
        ),
        (
            "official",
            {"evaluation": {"test_loss": {"batch_sequences_of": {"nano": 3}}}},
            'official; evaluation.test_loss.batch_sequences_of = {"gpt2-760m": 6, "nano": 3}',
        ),
        # What no protocol speaks of is no departure.
        ("corrected", {"training": {"beta2": 0.9}}, "corrected"),
    ],
)
def test_departures_are_named(tiny_study, protocol, sections, label):
    sections = {name: tiny_study()[name] | section for name, section in sections.items()}
    assert parsed(tiny_study, protocol, **sections).protocol_label == label


def test_protocols_share_no_cells(tiny_study):
    ids = [
        set(Planned(parsed(tiny_study, protocol), "tiny-0123456789").cells)
        for protocol in PROTOCOLS
    ]
    assert len(set().union(*ids)) == sum(map(len, ids)) == 18


def test_the_documentation_says_the_same():
    rows = {}
    for line in Path("docs/protocols.md").read_text(encoding="utf-8").splitlines():
        if re.match(r"\| [^|]+ \| `(training|evaluation)\.", line):
            _, field, official, paper, corrected, source, _ = line.removeprefix("| ").split(" | ")
            assert source.startswith("[")
            rows[field.strip("`")] = (official, paper, corrected)
    expected = {}
    for field, point in LEDGER.items():
        official, paper, corrected = (
            f"`{as_yaml(point.value(protocol))}`" for protocol in PROTOCOLS
        )
        expected[field] = (
            official,
            paper + (" (silent)" if point.paper is None else ""),
            corrected,
        )
    assert rows == expected


def test_windows_of_a_model_that_the_study_has_not_are_refused(tiny_study):
    with pytest.raises(
        ValueError, match=r"batch_sequences_of: gpt2-76m is not among the study's models nano"
    ):
        parsed(tiny_study, evaluation={"test_loss": {"batch_sequences_of": {"gpt2-76m": 6}}})
    with pytest.raises(
        ValueError, match=r"evaluation\.test_loss\.batch_sequences_of\.nano: must be greater than 0"
    ):
        parsed(tiny_study, evaluation={"test_loss": {"batch_sequences_of": {"nano": 0}}})


def test_a_batch_that_the_authors_ranks_cannot_share_is_refused(tiny_study):
    with pytest.raises(
        ValueError, match=r"training\.data_ranks: 4 does not divide batch_sequences 6"
    ):
        parsed(tiny_study, "official", training={"batch_sequences": 6})
    assert (
        parsed(
            tiny_study, "official", training={"batch_sequences": 6, "data_ranks": 2}
        ).training.data_ranks
        == 2
    )
