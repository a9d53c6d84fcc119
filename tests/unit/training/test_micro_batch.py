import math

import pytest
import torch
from casts import Casts
from planned import only

from coupled_adam_bench.store.files import read_json
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.jobs import train
from coupled_adam_bench.training.memory import pieces
from coupled_adam_bench.training.trainer import Trainer

ALONE = WorkerGroup(torch.device("cpu"))


@pytest.mark.parametrize(
    ("sequences", "fitting", "size"),
    [(96, 96, 96), (96, 500, 96), (96, 95, 48), (96, 40, 32), (12, 5, 4), (7, 3, 3), (5, 0, 1)],
)
def test_pieces_are_few_and_equal(sequences, fitting, size):
    assert pieces(sequences, fitting) == size
    assert size <= max(1, fitting)
    assert math.ceil(sequences / size) == math.ceil(sequences / max(1, min(fitting, sequences)))


def test_a_cell_trains_with_what_was_found(tiny_study, tiny_data, tmp_path):
    settings = tiny_study()
    settings["execution"] |= {"micro_batch_sequences": "auto", "train_mem_mb": 801}
    plan = make_plan(parse_study(settings))
    cell = next(iter(plan.cells.values()))
    found = {}
    for mem_mb in (800, 4000):
        execution = only(plan).study.execution.model_copy(update={"train_mem_mb": mem_mb})
        assert train(cell, execution, tiny_data, tmp_path / str(mem_mb), ALONE) == 0
        found[mem_mb] = read_json(tmp_path / str(mem_mb) / "run.json")["train"][
            "micro_batch_sequences"
        ]
    assert found == {800: 1, 4000: 4}


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_all_micro_batches_of_a_step_share_the_casts_of_the_weights(
    micro_batch, tiny_study, tiny_data, tmp_path
):
    settings = tiny_study()
    settings["training"] |= {"precision": "bf16"}
    settings["execution"] |= {"micro_batch_sequences": micro_batch}
    cell = next(iter(make_plan(parse_study(settings)).cells.values()))
    trainer = Trainer(cell, cell.study.execution, tiny_data, tmp_path / "run", ALONE)
    weight = trainer.model.blocks[0].attn_qkv.weight
    with Casts() as casts:
        trainer.train_step(0)
    trainer.close()
    to_bf16 = casts.of(tuple(weight.shape), torch.float32, torch.bfloat16)
    assert to_bf16 == cell.model.n_layer
    assert not torch.is_autocast_enabled("cpu")
