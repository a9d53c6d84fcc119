"""A source of tokens of a study's own: its bins, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coupled_adam_bench.data.bins import load_meta, open_tokens
from coupled_adam_bench.data.plug_ins import try_source
from coupled_adam_bench.data.prepare import prepare
from coupled_adam_bench.study.plan.cells import data_digest, data_id
from coupled_adam_bench.study.plan.inputs import with_code
from coupled_adam_bench.study.settings import Study

CODE = """
import numpy as np
from coupled_adam_bench.data.plug_ins import SourcePlugIn

class Counting(SourcePlugIn):
    contract = 1
    def __init__(self, files, n_tokens=40):
        self.files, self.n_tokens = files, n_tokens
    def tokens(self, split):
        yield []
        yield list(range(self.n_tokens))
        yield np.array([len(self.files)])

class Real(Counting):
    def tokens(self, split):
        yield np.ones(3)

class Large(Counting):
    def tokens(self, split):
        yield np.array([1, 399])

class Raises(Counting):
    def tokens(self, split):
        yield {}["lost"]

class RaisesValue(Counting):
    def tokens(self, split):
        yield np.concatenate([])

class Short(Counting):
    def tokens(self, split):
        yield np.arange(40 if split == "train" else 3)
"""


@pytest.fixture
def study_of(
    files_study: Callable[..., Study],
    small_gpt2: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Study]:
    name = f"sources_{tmp_path.parent.name}_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    text = tmp_path / "text"
    text.mkdir()
    for file in ("b.bin", "a.tok", ".hidden"):
        (text / file).write_bytes(b"\0\1")

    def make(kind: str = "Counting", **arguments: Any) -> Study:
        source = {"kind": "own", "path": f"{name}.{kind}", "arguments": arguments}
        return with_code(files_study(text, small_gpt2, vocab_size=512, source=source))

    return make


def make(study: Study, out: Path) -> None:
    prepare(study, data_id(study, data_digest(study)), out, workers=1)


def test_the_bins_have_its_tokens(study_of, tmp_path):
    study = study_of(n_tokens=30)
    try_source(study)
    make(study, tmp_path / "out")
    for split in ("train", "val", "test"):
        assert open_tokens(tmp_path / "out", split).tolist() == [*range(30), 2]
    meta = load_meta(tmp_path / "out")
    assert (meta.dtype, meta.source["kind"], meta.source["n_files"]) == ("<u2", "own", 2)
    assert meta.source["code"] == study.data.source.code
    counts = np.load(tmp_path / "out" / "unigram.npy")
    assert (counts[2], counts.sum(), len(counts)) == (2, 31, 512)


def test_the_id_follows_arguments_and_files(study_of, tmp_path):
    before = data_digest(study_of())
    assert data_digest(study_of(n_tokens=41)) != before
    (tmp_path / "text" / "a.tok").write_bytes(b"\0\2")
    assert data_digest(study_of()) != before


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("Real", r"data\.source\.path: .*Real must give whole numbers from 0 to 398, the tokens"),
        ("Large", r"Large must give whole numbers from 0 to 398, .* for train it gave array"),
        ("Raises", r"data\.source\.path: .*Raises fails for train \(KeyError: 'lost'\)"),
        (
            "RaisesValue",
            r"source\.path: .*RaisesValue fails for train \(ValueError: .*\) at line 28",
        ),
        ("Short", r"val has 3 tokens .*; let the class of data\.source give more tokens of val"),
    ],
)
def test_tokens_that_are_refused(study_of, kind, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        make(study_of(kind), tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        ("Lost", {}, r"data\.source\.path: .* has no 'Lost'"),
        ("Counting", {"n": 1}, r"data\.source\.arguments: .*'n'; .* takes \(files, n_tokens=40\)"),
    ],
)
def test_a_source_is_tried_before_the_first_job(study_of, kind, arguments, said):
    with pytest.raises(ValueError, match=said):
        try_source(study_of(kind, **arguments))
