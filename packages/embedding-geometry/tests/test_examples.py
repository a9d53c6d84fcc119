"""The example of the README, run as it stands there."""

import re
from pathlib import Path

import numpy as np

from embedding_geometry.metrics import METRICS

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_example_of_the_readme(tmp_path, monkeypatch, capsys):
    np.save(
        tmp_path / "matrix.npy", np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    )
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    exec(compile(block, "README.md", "exec"), {})
    isotropy, rank = map(float, capsys.readouterr().out.split())
    assert 0 < isotropy <= 1 < rank <= 4


def test_the_readme_defines_every_metric():
    table = README.split("| metric | definition |", 1)[1].split("\n\n", 1)[0]
    first_column = "".join(
        line.split("|")[1] for line in table.splitlines() if line.startswith("|")
    )
    assert set(re.findall(r"`(\w+)`", first_column)) == {*METRICS, "r_bar"}
