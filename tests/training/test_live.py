"""What is measured while a cell trains, against NumPy on the files of the run."""

from pathlib import Path

import numpy as np
import pytest
import torch
from nano import losses, plan_of, train
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from coupled_adam_bench.data.bins import load_counts, open_tokens
from coupled_adam_bench.store.runs import data_dir, run_of
from coupled_adam_bench.training.jobs import train_cells
from coupled_adam_bench.training.live import second_moment_line


def test_the_line_is_that_of_least_squares() -> None:
    random = np.random.default_rng(3)
    counts = random.integers(0, 1000, 200)
    moment = 2e-3 * counts / counts.sum() + random.uniform(0, 1e-6, 200)
    moment[5] = 0.0
    moment, counts = np.append(moment, 0.1), np.append(counts, 0)  # a row that pads the vocabulary
    used = (counts > 0) & (moment > 0)
    x, y = counts[used] / counts.sum(), moment[used]
    found = second_moment_line(moment, counts)
    assert found["second_moment_slope"] == pytest.approx(np.polyfit(x, y, 1)[0], rel=1e-9)
    assert found["second_moment_r2"] == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2, rel=1e-9)


@pytest.mark.parametrize("counts", [[3, 0, 0, 2], [2, 2, 2, 2]])
def test_without_a_line_there_are_no_numbers(counts: list[int]) -> None:
    assert second_moment_line(np.arange(1.0, 5.0), np.array(counts)) == {}


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.usefixtures("nano")
def test_the_last_row_of_the_history_is_what_files_say(amsgrad: bool) -> None:
    (cell,) = train([{"name": "adamw", "amsgrad": amsgrad}], micro_batch_sequences=3)
    run, data = run_of(cell.id), data_dir(cell.data_id)
    row = run.rows()[-1]

    # The loss of transformers' own model on the same windows.
    model = AutoModelForCausalLM.from_pretrained(run.model)
    tokens, training = np.array(open_tokens(data, "val")).astype(np.int64), cell.training
    there = (len(tokens) - 1) // training.seq_len
    starts = [index * there // 4 * training.seq_len for index in range(4)]
    windows = torch.tensor(tokens[np.array(starts)[:, None] + np.arange(training.seq_len + 1)])
    with torch.no_grad():
        logits = model(windows[:, :-1]).logits
    loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    assert row["val_loss"] == pytest.approx(loss.item(), rel=1e-6)

    # Adam's second moment, from the checkpoint of the last step.
    newest = sorted(run.checkpoints.glob("*.pt"))[-1]
    states = torch.load(newest, weights_only=True)["optimizers"]["embedding"]["state"]
    moment = states[0]["max_exp_avg_sq" if amsgrad else "exp_avg_sq"]
    moment = moment.double().numpy() / (1 - training.beta2**cell.steps)
    expected = second_moment_line(moment.mean(1), load_counts(data))
    assert expected.keys() <= row.keys()
    assert [row[name] for name in expected] == pytest.approx([*expected.values()], rel=1e-6)

    weight = model.get_input_embeddings().weight.detach().double().numpy()
    ratio = np.linalg.norm(weight.mean(0)) / np.linalg.norm(weight, axis=1).mean()
    assert row["mean_norm_ratio"] == pytest.approx(ratio, rel=1e-9)


@pytest.mark.usefixtures("nano")
def test_measuring_changes_no_weight_and_has_its_steps() -> None:
    (cell,) = train(["coupled_adam"])
    with_steps = losses(cell)
    measured = [row["step"] for row in run_of(cell.id).rows() if "val_loss" in row]
    assert measured == [20, 40, 60]
    assert "second_moment_slope" not in run_of(cell.id).rows()[-1]
    Path("results/runs").rename("measured")
    train(["coupled_adam"], eval_every=None)
    assert losses(cell) == with_steps
    assert [row["step"] for row in run_of(cell.id).rows() if "val_loss" in row] == [60]


@pytest.mark.usefixtures("nano")
def test_the_record_says_what_it_took() -> None:
    plan = plan_of(["sgd"], steps=20, train_threads=2)
    (cell,) = plan.cells.values()
    assert train_cells([cell], plan.study.execution) == 0
    cost = run_of(cell.id).read()["train"]
    assert (cost["processes"], cost["micro_batch_sequences"]) == (1, 4)
    assert run_of(cell.id).read()["environment"]["threads"] == 2
    speeds = [row["tokens_per_second"] for row in run_of(cell.id).rows()]
    seconds = sum(5 * cell.training.batch_tokens / speed for speed in speeds)
    assert cost["seconds"] == pytest.approx(seconds, rel=0.5)
