"""The test loss by frequency band, per byte and per window, against slow formulas of their own."""

import json
import math
import re
import shutil
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from coupled_adam_bench.study.catalogue.bands import BAND_NAMES, BAND_SHARES, BANDS, NEVER_SEEN
from hypothesis import given
from hypothesis import strategies as st
from planned import Planned
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from coupled_adam_bench.data.bins import SPLITS, document_ends, open_tokens
from coupled_adam_bench.data.prepare import prepare
from coupled_adam_bench.data.shards import split_of
from coupled_adam_bench.data.synthetic import Language
from coupled_adam_bench.data.token_bytes import UNKNOWN, TokenBytes
from coupled_adam_bench.evaluation.loss_detail import LossDetail, Vocabulary, open_vocabulary
from coupled_adam_bench.evaluation.stage import run_stage
from coupled_adam_bench.models.export import load_model
from coupled_adam_bench.records.kept import (
    WINDOWS,
    WindowLosses,
    pack_windows,
    paired_windows,
    read_windows,
    unpack_windows,
)
from coupled_adam_bench.records.stored import measurement_of
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import read_sealed, write_sealed
from coupled_adam_bench.store.runs import write_run
from coupled_adam_bench.study import settings
from coupled_adam_bench.study.catalogue.stages import STAGES
from coupled_adam_bench.study.plan import make_plan
from embedding_geometry.frequency import bands_of_tokens

DONE = Path("stage.done")
STAGE = STAGES["test_loss"]


def band_in_plain_words(counts: list[int], token: int) -> str:
    """The share of the text that is rarer than a token, with half of what is as frequent, in exact
    fractions."""
    if counts[token] == 0:
        return NEVER_SEEN
    rarer = sum(count for count in counts if count < counts[token])
    equal = sum(count for count in counts if count == counts[token])
    place = Fraction(2 * rarer + equal, 2 * sum(counts))
    return next(band.name for band in BANDS if place <= Fraction(str(band.share)))


@given(
    st.lists(st.integers(0, 30) | st.integers(0, 10**12), min_size=1, max_size=40).filter(any),
    st.randoms(),
)
def test_bands_against_the_definition_and_in_any_order_of_the_vocabulary(counts, random):
    found = bands_of_tokens(np.array(counts), BAND_SHARES)
    assert [BAND_NAMES[number] for number in found] == [
        band_in_plain_words(counts, token) for token in range(len(counts))
    ]
    order = random.sample(range(len(counts)), len(counts))
    np.testing.assert_array_equal(
        bands_of_tokens(np.array(counts)[order], BAND_SHARES), found[order]
    )
    np.testing.assert_array_equal(bands_of_tokens(3 * np.array(counts), BAND_SHARES), found)


def rewrite_meta(part: Planned, n_documents: int) -> None:
    """Say that the test split has another number of documents."""
    path = paths.data_dir(part.data_id) / "meta.json"
    values = {key: value for key, value in read_sealed(path).items() if key != "sha256"}
    values["splits"]["test"]["n_documents"] = n_documents
    write_sealed(path, values)


def measured(part: Planned, cell_ids: list[str]) -> list[dict]:
    assert run_stage(STAGE, part.of(cell_ids), DONE) == 0
    return [measurement_of(STAGE, part.study, part.data_id).read(cell_id) for cell_id in cell_ids]


def losses_in_plain_words(part: Planned, cell_id: str) -> tuple[np.ndarray, np.ndarray]:
    """The test split and the loss of each of its tokens but the first, one window at a time."""
    tokens = np.fromfile(paths.data_dir(part.data_id) / "test.bin", dtype="<u2").astype(np.int64)
    model = load_model(paths.run_dir(cell_id) / "model").double()
    losses = []
    for start in range(0, len(tokens) - 1, 40):
        window = torch.from_numpy(tokens[start : start + 41])
        with torch.no_grad():
            log_p = torch.log_softmax(model.logits(window[None, :-1])[0], -1)
        losses += [-row[target].item() for row, target in zip(log_p, window[1:], strict=True)]
    return tokens, np.array(losses)


def test_a_measured_cell_against_its_definition(part):
    cell_id = next(iter(part.cells))
    (record,) = measured(part, [cell_id])
    tokens, losses = losses_in_plain_words(part, cell_id)
    values = {found["metric"]: found["value"] for found in record["results"]}
    counts = Counter(tokens.tolist())  # the fixture's splits are all the same
    counted = [counts[token] for token in range(128)]
    for described in record["bands"]:
        of_band = [band_in_plain_words(counted, token) == described["band"] for token in range(128)]
        chosen = [bool(of_band[token]) for token in tokens[1:]]
        assert described["tokens"] == sum(of_band)
        assert described["targets"] == sum(chosen)
        if described["band"] == NEVER_SEEN:
            assert (described["loss"], described["training_counts"]) == (None, [0, 0])
            continue
        assert described["loss"] == values[f"loss_{described['band']}"]
        assert described["loss"] == pytest.approx(losses[chosen].mean(), rel=1e-6)
        inside = [count for count, here in zip(counted, of_band, strict=True) if here]
        assert described["training_counts"] == [min(inside), max(inside)]
    parts = [band["targets"] * (band["loss"] or 0) for band in record["bands"]]
    assert math.fsum(parts) / (len(tokens) - 1) == pytest.approx(values["loss"], rel=1e-12)
    words = [*Language(part.study.data.source).names, None]
    documents = "".join(f" {words[token]}" if words[token] else "\n" for token in tokens).split(
        "\n"
    )
    # The first word is no target: the rest of its document keeps the space before it.
    first, *others = documents
    text = first.removeprefix(f" {words[tokens[0]]}") if words[tokens[0]] else first
    n_bytes = len(text.encode()) + sum(len(document.strip().encode()) for document in others)
    assert record["n_predicted_bytes"] == n_bytes
    assert values["bits_per_byte"] == pytest.approx(losses.sum() / math.log(2) / n_bytes, rel=1e-6)


def pieces_in_plain_words(
    tokens: np.ndarray, starts: list[int], length: int, eot_id: int
) -> list[tuple[int, ...]]:
    """The first input, the document and the targets of each piece, target by target."""
    pieces: list[list[int]] = []
    for start in starts:
        last = None
        for place in range(start + 1, min(start + length + 1, len(tokens))):
            document = int(
                (tokens[:place] == eot_id).sum()
            )  # an end-of-text token is in the document that it ends
            if document != last:
                pieces.append([place - 1, document, 0])
            pieces[-1][2] += 1
            last = document
    return [tuple(piece) for piece in pieces]


def test_the_loss_of_each_window_cut_where_documents_end(part):
    cell_ids = list(part.cells)
    measured(part, cell_ids)
    cells = part.of(cell_ids)
    pairs = paired_windows(*cells)
    for cell_id, found in zip(cell_ids, (pairs.first, pairs.second), strict=True):
        tokens, losses = losses_in_plain_words(part, cell_id)
        windows = read_windows(measurement_of(STAGE, part.study, part.data_id), cell_id)
        np.testing.assert_array_equal(windows.losses, found)
        expected = pieces_in_plain_words(tokens, list(range(0, 499, 40)), 40, 120)
        columns = (windows.starts.tolist(), windows.documents.tolist(), windows.n_targets.tolist())
        assert list(zip(*columns, strict=True)) == expected
        assert len(expected) > 13 and pairs.documents.tolist() == windows.documents.tolist()
        means = [losses[start : start + n].mean() for start, _, n in expected]
        np.testing.assert_allclose(found, means, rtol=1e-6)
    assert (pairs.first != pairs.second).any()
    record = measurement_of(STAGE, part.study, part.data_id).read(cell_ids[0])
    values = {found["metric"]: found["value"] for found in record["results"]}
    assert (pairs.first * pairs.n_targets).sum() / 499 == pytest.approx(values["loss"], rel=1e-12)
    assert values["n_predicted_tokens"] == pairs.n_targets.sum() == 499
    assert values["n_documents"] == len(set(pairs.documents.tolist()))


def test_end_of_text_within_documents_makes_one_document_of_all(part, capsys):
    """A tokenizer that writes end-of-text for unknown words would make documents of single
    sentences."""
    rewrite_meta(part, n_documents=2)
    (record,) = measured(part, [next(iter(part.cells))])
    values = {found["metric"]: found["value"] for found in record["results"]}
    assert (values["n_predicted_tokens"], values["n_documents"]) == (499, 1)
    assert re.search(
        r"test has \d+ end-of-text tokens in 2 documents, so where these end",
        capsys.readouterr().err,
    )
    assert "rarest_stderr: the rarest 1 % do not vary over documents" in record["reason"]


@given(st.lists(st.integers(0, 3), min_size=9, max_size=60), st.integers(1, 8), st.randoms())
def test_pieces_of_any_windows_and_documents(tokens, length, random):
    """Token 0 ends a document, or nothing does; windows overlap, and come in batches."""
    tokens = np.array(tokens)
    starts = [random.randrange(len(tokens) - length) for _ in range(random.randrange(1, 9))]
    losses = np.array([[start + 0.25 * place for place in range(length)] for start in starts])
    for eot_id in (0, 7):
        detail = LossDetail(
            vocabulary(None, "unknown"), np.array(starts), document_ends(tokens, eot_id)
        )
        for batch in (losses[first : first + 3] for first in range(0, len(starts), 3)):
            detail.logits.add(torch.zeros(batch.size, 4))
            detail.add((np.ones_like(batch, np.int64), np.ones_like(batch, np.int64)), batch)
        found = unpack_windows(
            detail.evaluation(1.0, losses.size, "cpu").files[WINDOWS], Path("windows")
        )
        pieces = pieces_in_plain_words(tokens, starts, length, eot_id)
        columns = (found.starts.tolist(), found.documents.tolist(), found.n_targets.tolist())
        assert list(zip(*columns, strict=True)) == pieces
        assert found.n_targets @ found.losses == pytest.approx(losses.sum())
        if eot_id == 7:
            assert set(found.documents.tolist()) == {0}


def test_windows_that_are_not_the_same_make_no_pairs(part):
    random = settings.TestLoss(windows="random", n_batches=3, batch_sequences=2)
    evaluation = part.study.evaluation.model_copy(update={"test_loss": random})
    part = Planned(part.study.model_copy(update={"evaluation": evaluation}), part.data_id)
    first, second = part.cells.values()
    measured(part, [first.id])
    shutil.copytree(paths.run_dir(first.id), paths.run_dir("other"))
    other = replace(first, id="other", seed=2)
    shutil.rmtree(paths.run_dir("other") / "evaluations")
    write_run(paths.run_dir("other"), {"cell": "other", "status": "completed", "reason": None})
    assert run_stage(STAGE, [other], DONE) == 0
    with pytest.raises(
        ValueError, match=r"and other were not measured on the same windows, .* one seed"
    ):
        paired_windows(first, other)
    with pytest.raises(ValueError, match="no such file"):
        paired_windows(first, second)
    assert paired_windows(first, first).n_targets.sum() == 6 * 40


NUMBERS = st.integers(0, 2**40)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, st.floats(width=64)), max_size=20))
def test_windows_are_read_back_bit_for_bit_from_the_same_bytes(rows):
    *integers, losses = zip(*rows, strict=True) if rows else ((), (), (), ())
    windows = WindowLosses(
        *(np.array(column, np.int64) for column in integers), np.array(losses, np.float64)
    )
    packed = pack_windows(windows)
    again = unpack_windows(packed, Path("windows"))
    assert pack_windows(again) == packed
    for name in ("starts", "documents", "n_targets", "losses"):
        np.testing.assert_array_equal(getattr(again, name), getattr(windows, name))


def test_what_is_no_file_of_windows_is_named():
    for contents in (
        b"",
        b"\x1f\x8b",
        b"start",
        pack_windows(WindowLosses(*4 * [np.array([1])]))[:-9],
    ):
        with pytest.raises(ValueError, match=r"f\.gz: not the losses of windows"):
            unpack_windows(contents, Path("f.gz"))


@pytest.mark.fault(
    "evaluation",
    "the losses of windows, or other files beside an evaluation, are changed, cut or lost",
    "The collection stops with a sentence that names the file; the next start measures the cell"
    " again, to the same bytes.",
)
@pytest.mark.parametrize(
    "damage", [lambda file: file.unlink(), lambda file: file.write_bytes(b"x")]
)
def test_a_damaged_file_beside_an_evaluation_is_made_anew(part, damage, capsys):
    cell_id = next(iter(part.cells))
    measured(part, [cell_id])
    measurement = measurement_of(STAGE, part.study, part.data_id)
    file = measurement.file(cell_id, WINDOWS)
    contents = file.read_bytes()
    damage(file)
    assert str(file) in measurement.damage(cell_id)
    measured(part, [cell_id])
    assert f"evaluated again: {file}: " in capsys.readouterr().err
    assert file.read_bytes() == contents


TEXTS = [f"one {n} two \u2581\u2581 bars  and   spaces, ein Stück für {n * n}" for n in range(40)]


def byte_fallback(pre_tokenizer, decoder=None, normalizer=None) -> Tokenizer:
    """A BPE of single characters, which writes what it does not know in bytes."""
    names = [
        "<unk>",
        "\u2581",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *"abcdefghijklmnopqrstuvwxyz",
    ]
    model = models.BPE(
        {name: index for index, name in enumerate(names)}, [], byte_fallback=True, unk_token="<unk>"
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    if decoder is not None:
        tokenizer.decoder = decoder
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


METASPACE = (pre_tokenizers.Metaspace(), decoders.Metaspace())
OTHERS = {
    "spaces without a mark": (lambda: byte_fallback(pre_tokenizers.WhitespaceSplit()), TEXTS),
    "bars in the text": (lambda: byte_fallback(*METASPACE), TEXTS),
    "white space is collapsed": (
        lambda: byte_fallback(*METASPACE, normalizers.Replace(Regex(" +"), " ")),
        TEXTS,
    ),
    "the text is spelled": (
        lambda: byte_fallback(*METASPACE),
        [text.replace("\u2581", "") for text in TEXTS],
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_bits_per_byte_count_the_text_itself(kind, tmp_path, monkeypatch):
    """What the tokens of other people's tokenizers spell can have more or fewer bytes than the
    text."""
    monkeypatch.chdir(tmp_path)
    make, texts = OTHERS[kind]
    make().save("tokenizer.json")
    Path("text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    split = {"val_fraction": 0.3, "test_fraction": 0.3}
    study = settings.parse_study(
        {
            "study": "s",
            "paths": {"text": "text.jsonl", "tokenizer": "tokenizer.json"},
            "data": {
                "name": "d",
                "source": {"kind": "files"},
                "tokenizer": "file",
                "vocab_size": 300,
                "split": split,
            },
            "models": ["gpt2-2x32"],
            "training": {"seq_len": 8, "batch_sequences": 2, "warmup_steps": 5},
            "grid": [{"models": ["gpt2-2x32"], "tokens": [{"steps": 10}], "optimizers": ["adamw"]}],
        }
    )
    plan = make_plan(study)
    data_id = plan.data_id(study)
    folder = paths.data_dir(data_id)
    prepare(study, data_id, folder, workers=1)
    test = SPLITS.index("test")
    held_out = [
        text.encode() for text in texts if split_of(text.encode(), study.data.split) == test
    ]
    first = (
        0 if kind != "spaces without a mark" else 1
    )  # what the first token, which is no target, spells
    vocabulary = open_vocabulary(folder, "test", "all")
    assert vocabulary.bytes_of_tokens is not None
    if kind == "the text is spelled":
        assert vocabulary.n_bytes is None
        assert vocabulary.bytes_of_tokens.spelled(open_tokens(folder, "test")) == sum(
            map(len, held_out)
        )
    else:
        assert vocabulary.n_bytes == sum(map(len, held_out)) - first
        windows = open_vocabulary(folder, "test", "random")
        assert windows.bytes_of_tokens is None and "bytes of a text of" in windows.no_bytes
    # Data of an earlier version do not say how many bytes their text has.
    values = {
        key: value for key, value in read_sealed(folder / "meta.json").items() if key != "sha256"
    }
    del values["splits"]["test"]["n_bytes"]
    write_sealed(folder / "meta.json", values)
    assert f"delete meta.json of {data_id}" in open_vocabulary(folder, "test", "all").no_bytes


def vocabulary(bytes_of_tokens: TokenBytes | None, no_bytes: str = "") -> Vocabulary:
    return Vocabulary(np.array([0, 5, 5, 90]), np.array([0, 2, 2, 4]), bytes_of_tokens, no_bytes)


def detail_of(bytes_of_tokens: TokenBytes | None, no_bytes: str = "") -> LossDetail:
    detail = LossDetail(
        vocabulary(bytes_of_tokens, no_bytes), np.array([0]), np.array([], np.int64)
    )
    detail.logits.add(torch.zeros(2, 4))
    detail.add((np.array([[3, 1]]), np.array([[1, 3]])), np.array([[2.0, 1.0]]))
    return detail


@pytest.mark.parametrize(
    ("bytes_of_tokens", "reason"),
    [
        (None, "cannot say"),
        (
            TokenBytes(np.array([1, UNKNOWN, 1, 0]), np.array([1, 1, 1, 0]), 0),
            "1 targets are tokens that stand for",
        ),
        (TokenBytes(np.zeros(4, int), np.zeros(4, int), 0), "the targets stand for no text"),
    ],
)
def test_bytes_that_nobody_knows_and_empty_bands_are_gaps_with_a_reason(bytes_of_tokens, reason):
    found = detail_of(bytes_of_tokens, "cannot say").evaluation(1.5, 2, "cpu")
    values = {found["metric"]: found["value"] for found in found.results}
    gaps = {"pooled_calibration_rarest_stderr"} | {
        f"{kind}_{band}"
        for kind in ("loss", "calibration", "pooled_calibration")
        for band in ("rarest", "frequent")
    }
    gaps |= {
        f"{name}_of_text" for name in gaps if "calibration" in name and not name.endswith("_stderr")
    }
    assert {name for name, value in values.items() if math.isnan(value)} == gaps | {"bits_per_byte"}
    assert (values["loss_rare"], values["loss_most_frequent"]) == (2.0, 1.0)
    assert found.undefined[0].startswith(f"bits_per_byte: {reason}")
    assert found.undefined[1:] == [
        "loss_rarest and calibration: no target is of the rarest 1 % of the training text",
        "loss_frequent and calibration: no target is of the 10 to 50 % of the training text",
    ]
    assert found.detail["n_predicted_bytes"] is None
