"""Training of a cell beside a plain loop with all logits, which has the same losses."""

import pytest
import torch
from tiny import tiny_study
from torch.nn import functional as F

from coupled_adam_bench.data.bins import open_tokens
from coupled_adam_bench.data.prepare import prepare
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.store.runs import data_dir
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.study import parse_study
from coupled_adam_bench.training.order import Order
from coupled_adam_bench.training.processes import Group
from coupled_adam_bench.training.trainer import Trainer

STEPS = 4  # at once


def make_cell(batch_sequences):
    """Prepare a text, and return a cell of 1.1M parameters that reads it, and its settings."""
    size = {"name": "small", "n_layer": 4, "n_head": 4, "d_model": 128, "learning_rate": 1e-3}
    study = tiny_study(models=[size])
    study["data"]["source"] |= {"n_words": 1000, "n_tokens": 300_000}
    study["data"]["vocab_size"] = 2048
    # One optimizer for all matrices, as the plain loop has.
    study["training"] |= {
        "seq_len": 128,
        "batch_sequences": batch_sequences,
        "embedding_weight_decay": 0.1,
    }
    block = {"models": ["small"], "tokens": [{"steps": 10_000}], "optimizers": ["adamw"]}
    study["grid"] = [block | {"seeds": [1]}]
    plan = make_plan(parse_study(study))
    prepare(plan.study, plan.data_id, data_dir(plan.data_id))
    (cell,) = plan.cells.values()
    return cell, plan.study.execution


def plain_loop(cell):
    """A function that does steps as a short script would, and returns their losses."""
    training = cell.training
    tokens = torch.from_numpy(open_tokens(data_dir(cell.data_id), "train").astype("int64"))
    order = Order(len(tokens), training, cell.seed)
    model = build_model(cell.model, cell.vocab_size, training.seq_len)
    model.init_weights(cell.seed, training.init_std)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(training.beta1, training.beta2))
    done = 0

    def run():
        nonlocal done
        losses = []
        for step in range(done, done + STEPS):
            for group in groups:
                factor = training.learning_rate_factor(step, cell.steps)
                optimizer.param_groups[groups.index(group)]["lr"] = factor * 1e-3
            starts = order.starts(step).tolist()
            windows = torch.stack([tokens[start : start + 129] for start in starts])
            logits = F.linear(model.hidden(windows[:, :-1]), model.head_weight)
            loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        done += STEPS
        return losses

    return run


@pytest.mark.parametrize("batch_sequences", [16, 64])
@pytest.mark.usefixtures("home")
def test_training_is_at_least_as_fast_as_a_plain_loop(batch_sequences, ratio):
    cell, execution = make_cell(batch_sequences)
    group = Group(torch.device("cpu"))
    trainer = Trainer(cell, execution, group)
    found = {"ours": [], "theirs": []}
    theirs = plain_loop(cell)

    def ours():
        for _ in range(STEPS):
            trainer.train_step()
        trainer.read(stop=False)
        found["ours"].append(sum(trainer.losses) / STEPS)
        trainer.losses.clear()

    def plain():
        found["theirs"].append(sum(theirs()) / STEPS)

    assert ratio(ours, plain, 4) <= 1.0
    assert found["ours"] == pytest.approx(found["theirs"], rel=1e-4)
