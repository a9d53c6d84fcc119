"""The recipes of the README as they stand there, and matrices in shards, in two processes."""

import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from coupled_adam import CoupledAdam

README = Path(__file__).parents[2] / "packages/coupled-adam/README.md"
STEPS, LR, BETAS = 6, 6e-4, (0.9, 0.95)


def recipe(heading):
    """The one block of Python under a heading."""
    section = README.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return block


def new_model():
    torch.manual_seed(0)
    dropout = dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), 0)
    sizes = {"vocab_size": 31, "n_positions": 8, "n_embd": 6, "n_layer": 1, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropout))


def rows():
    """The rows of the one batch with which every step is taken."""
    tokens = torch.randint(31, (4, 8), generator=torch.Generator().manual_seed(1))
    # Nothing predicts the first token, but Trainer counts its label where it takes the mean.
    labels = tokens.clone().index_fill(1, torch.tensor([0]), -100)
    return [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]


BATCH = torch.utils.data.default_collate(rows())


def reference(dtype=torch.float32):
    """The weights after all steps by two optimizers, and by torch's own AdamW for the rest."""
    model = new_model().to(dtype)
    embedding = model.get_input_embeddings().weight
    rest = [parameter for parameter in model.parameters() if parameter is not embedding]
    settings = {"lr": LR, "betas": BETAS}
    optimizers = [
        CoupledAdam([embedding], **settings),
        torch.optim.AdamW([p for p in rest if p.ndim >= 2], weight_decay=0.1, **settings),
        torch.optim.AdamW([p for p in rest if p.ndim < 2], weight_decay=0.0, **settings),
    ]
    train(model, optimizers)
    return model.state_dict()


def train(model, optimizers, steps=STEPS):
    for _ in range(steps):
        model(**BATCH).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def assert_trained(model, rtol=1e-5, atol=1e-6):
    torch.testing.assert_close(model.state_dict(), reference(), rtol=rtol, atol=atol)
    moved = model.get_input_embeddings().weight - new_model().get_input_embeddings().weight
    assert moved.abs().mean() > LR


def test_the_own_loop():
    loader = torch.utils.data.DataLoader(rows() * STEPS, batch_size=len(rows()))
    known = {"model": new_model(), "loader": loader}
    exec(recipe("In your own loop"), known)
    assert_trained(known["model"])


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
def test_the_trainer_and_its_resume(tmp_path):
    code = recipe("With the Trainer of transformers")
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        max_steps=STEPS,
        save_steps=STEPS // 2,
        weight_decay=0.1,
        learning_rate=LR,
        lr_scheduler_type="constant",
        per_device_train_batch_size=len(rows()),
    )
    trained = {"model": new_model(), "arguments": arguments, "dataset": rows()}
    exec(code, trained)
    assert_trained(trained["model"])

    middle = tmp_path / f"checkpoint-{STEPS // 2}"
    resumed = {"model": new_model(), "arguments": arguments, "dataset": rows()}
    exec(code.replace("train()", f"train(resume_from_checkpoint={str(middle)!r})"), resumed)
    ours, whole = resumed["model"].state_dict(), trained["model"].state_dict()
    assert all(torch.equal(ours[name], whole[name]) for name in whole)


def test_fsdp2_and_shards(tmp_path):
    command = [sys.executable, __file__, (tmp_path / "store").as_uri()]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr


def whole_of(state):
    return {name: tensor.full_tensor() for name, tensor in state.items()}


def shard_by_recipe():
    model = new_model().double()
    known = {"model": model, "layers": model.transformer.h}
    exec(recipe("With FSDP2"), known)
    return model, known["optimizer"]


def in_fsdp2():
    """A model in shards, stopped in the middle, ends with the weights of a whole one."""
    model, optimizer = shard_by_recipe()
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 5, 10]
    train(model, [optimizer], STEPS // 2)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, state = get_state_dict(model, optimizer, options=options)
    # Only the first process has the whole state.
    both = [weights, state]
    dist.broadcast_object_list(both)
    again, optimizer = shard_by_recipe()
    set_state_dict(
        again, optimizer, model_state_dict=both[0], optim_state_dict=both[1], options=options
    )
    train(again, [optimizer], STEPS - STEPS // 2)
    ours = whole_of(again.state_dict())
    torch.testing.assert_close(ours, reference(torch.float64), rtol=1e-10, atol=1e-12)


def in_shards():
    """Matrices in even and uneven shards move as whole ones."""
    mesh = dist.init_device_mesh("cpu", (2,))
    placements, shapes = (Shard(0), Shard(1), Replicate()), ((9, 7), (8, 6), (1, 5), (300, 1))
    for placement, placement_of_grad, shape in product(placements, placements, shapes):
        generator = torch.Generator().manual_seed(0)
        start = torch.randn(shape, generator=generator, dtype=torch.float64)
        whole = torch.nn.Parameter(start.clone())
        sharded = torch.nn.Parameter(distribute_tensor(start, mesh, [placement]))
        optimizers = [
            CoupledAdam([matrix], lr=0.1, weight_decay=0.1, scale=0.5)
            for matrix in (whole, sharded)
        ]
        for _ in range(3):
            whole.grad = torch.randn(shape, generator=generator, dtype=torch.float64)
            # Its gradient may be placed in another way, as tensor parallelism does it.
            sharded.grad = distribute_tensor(whole.grad, mesh, [placement_of_grad])
            for optimizer in optimizers:
                optimizer.step()
        torch.testing.assert_close(sharded.full_tensor(), whole, rtol=1e-12, atol=1e-12)
        moments = [one.state[one.param_groups[0]["params"][0]]["exp_avg_sq"] for one in optimizers]
        torch.testing.assert_close(*moments, rtol=1e-12, atol=0)


if __name__ == "__main__":
    child = os.fork()  # the imports, which take seconds, are those of both
    rank = int(child == 0)
    dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=2)
    in_shards()
    in_fsdp2()
    dist.barrier()
    if rank == 1:
        os._exit(0)  # since torch 2.12 a process of a gloo group aborts now and then at its end
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
