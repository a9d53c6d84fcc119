"""The examples of the README, run as they stand there; all train the same model to the same
weights."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from coupled_adam import CoupledAdam

transformers = pytest.importorskip("transformers")

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
STEPS = 6
SETTINGS = {"lr": 6e-4, "betas": (0.9, 0.95)}


def example(heading: str) -> str:
    """Return the one block of Python under a heading, or before all headings."""
    section = (
        README.split("\n## ", 1)[0] if heading == "" else README.split(f"\n### {heading}\n", 1)[1]
    )
    (block, *_) = re.findall(r"```python\n(.*?)```", re.split(r"\n##+ ", section)[0], re.DOTALL)
    return block


def new_model() -> transformers.GPT2LMHeadModel:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=31,
        n_positions=8,
        n_embd=6,
        n_layer=1,
        n_head=2,
        embd_pdrop=0,
        resid_pdrop=0,
        attn_pdrop=0,
    )
    return transformers.GPT2LMHeadModel(config)


def rows() -> list[dict[str, torch.Tensor]]:
    """Return the rows of one batch, with which every step is taken, so that shuffling changes
    nothing."""
    tokens = torch.randint(31, (4, 8), generator=torch.Generator().manual_seed(1))
    labels = tokens.clone()
    labels[
        :, 0
    ] = (
        -100
    )  # no model predicts the first token, but Trainer counts its label where it takes the mean
    return [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]


def names() -> dict[str, object]:
    """Return what the examples take for granted."""
    return {
        "model": new_model(),
        "loader": torch.utils.data.DataLoader(rows() * STEPS, batch_size=len(rows())),
    }


@pytest.fixture(scope="module")
def expected() -> dict[str, torch.Tensor]:
    """Return the weights that two optimizers and torch's own clip give."""
    model = new_model()
    embedding = model.get_input_embeddings().weight
    rest = [parameter for parameter in model.parameters() if parameter is not embedding]
    optimizers = [
        CoupledAdam([embedding], **SETTINGS),
        torch.optim.AdamW([p for p in rest if p.ndim >= 2], weight_decay=0.1, **SETTINGS),
        torch.optim.AdamW([p for p in rest if p.ndim < 2], weight_decay=0.0, **SETTINGS),
    ]
    batch = torch.utils.data.default_collate(rows())
    for _ in range(STEPS):
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()


def assert_trained(model: torch.nn.Module, expected: dict[str, torch.Tensor]) -> None:
    start, state = new_model().state_dict(), model.state_dict()
    for name, weight in expected.items():
        assert not torch.equal(start[name], weight), f"{name} was not trained"
        torch.testing.assert_close(
            state[name], weight, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: name + text
        )


@pytest.mark.parametrize("heading", ["", "Plain PyTorch, with two optimizers"])
def test_plain_pytorch(heading, expected):
    known = names()
    exec(example(heading), known)
    assert_trained(known["model"], expected)


def training_arguments(folder: Path, **settings: object) -> transformers.TrainingArguments:
    return transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        max_steps=STEPS,
        weight_decay=0.1,
        learning_rate=6e-4,
        lr_scheduler_type="constant",
        per_device_train_batch_size=len(rows()),
        **settings,
    )


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
def test_trainer_of_transformers(tmp_path, expected):
    pytest.importorskip("accelerate")
    known = names() | {
        "dataset": rows(),
        "arguments": training_arguments(tmp_path, save_strategy="no"),
    }
    exec(example("Trainer of transformers"), known)
    assert_trained(known["model"], expected)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
def test_trainer_of_transformers_resumes_with_the_same_bits(tmp_path):
    pytest.importorskip("accelerate")
    models = []
    for resume in (False, True):
        arguments = training_arguments(tmp_path, save_strategy="steps", save_steps=STEPS // 2)
        known = names() | {"dataset": rows(), "arguments": arguments}
        call = (
            f"trainer.train(resume_from_checkpoint={str(tmp_path / f'checkpoint-{STEPS // 2}')!r})"
        )
        code = example("Trainer of transformers")
        assert code.count("trainer.train()") == 1
        exec(code.replace("trainer.train()", call) if resume else code, known)
        models.append(known["model"].state_dict())
    for name, weight in models[0].items():
        assert torch.equal(models[1][name], weight), name


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
@pytest.mark.parametrize("own_clip", [True, False])
def test_accelerate(own_clip, expected, monkeypatch):
    state = pytest.importorskip("accelerate.state")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    state.AcceleratorState._reset_state(reset_partial_state=True)  # of another test
    known = names()
    code = example("Accelerate")
    theirs = re.sub(
        r"accelerator\.unscale_gradients\(\)\n +coupled_adam\.(clip_grad_norm_.*)",
        r"accelerator.\1",
        code,
        count=1,
    )
    assert theirs != code
    exec(code if own_clip else theirs, known)
    assert_trained(known["model"], expected)


@pytest.mark.filterwarnings(
    "ignore"
)  # Lightning warns of many things that are meant here, and of other packages
@pytest.mark.parametrize("own_clip", [True, False])
def test_lightning(own_clip, tmp_path, expected, monkeypatch):
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)  # where it writes its logs and checkpoints
    known = names()
    code = example("Lightning")
    theirs = re.sub(r"    def configure_gradient_clipping.*?\n\n", "", code, flags=re.DOTALL)
    assert theirs != code
    exec(code if own_clip else theirs, known)
    assert_trained(known["model"], expected)


def test_fine_tuning_prints_the_isotropy_before_and_after(monkeypatch, capsys):
    path = Path(__file__).parents[1] / "examples" / "finetune.py"
    spec = importlib.util.spec_from_file_location("finetune", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.setattr(example, "STEPS", 60)
    monkeypatch.setattr("sys.argv", ["finetune.py"])
    example.main()
    said = capsys.readouterr().out
    before, adamw, coupled = (float(text) for text in re.findall(r"isotropy ([\d.]+)", said))
    assert adamw < 0.9 < coupled < before
    # The example's own isotropy is that of the package that measures.
    geometry = pytest.importorskip("embedding_geometry.isotropy")
    matrix = torch.randn(200, 8, generator=torch.Generator().manual_seed(0)) + 0.5
    expected = geometry.isotropy(matrix.double().numpy(), "both_signs")
    assert example.isotropy(matrix) == pytest.approx(expected, rel=1e-9)


def test_the_readme_has_no_other_example():
    assert len(re.findall(r"```python\n", README)) == 5
