"""One optimizer for a whole model: coupled groups follow the rule, all others are
torch.optim.AdamW."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from coupled_adam import CoupledAdam, coupled_param_groups

VOCAB_SIZE, SEQ_LEN, D_MODEL = 29, 8, 6
DECAY = {"weight_decay": 0.1, "embedding_weight_decay": 0.03}


class LanguageModel(nn.Module):
    def __init__(self, tied=True):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, D_MODEL)
        self.positions = nn.Embedding(SEQ_LEN, D_MODEL)
        self.mlp = nn.Sequential(
            nn.Linear(D_MODEL, 12), nn.GELU(), nn.Linear(12, D_MODEL), nn.LayerNorm(D_MODEL)
        )
        self.head = nn.Linear(D_MODEL, VOCAB_SIZE, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        hidden = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.head(hidden + self.mlp(hidden))

    def loss(self, batch):
        return nn.functional.cross_entropy(
            self(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()
        )


def model_of(tied=True, dtype=torch.float64):
    torch.manual_seed(0)
    return LanguageModel(tied).to(dtype)


def batches(steps):
    generator = torch.Generator().manual_seed(1)
    return (
        (torch.randn(steps, 4, SEQ_LEN + 1, generator=generator).abs() * 8)
        .long()
        .clamp(max=VOCAB_SIZE - 1)
    )


def one_optimizer(model, **settings):
    return CoupledAdam(coupled_param_groups(model, **DECAY), **settings)


def train(model, optimizer, steps, clip=1.0):
    for batch in steps:
        model.loss(batch).backward()
        if clip is not None:
            optimizer.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()


def assert_equal(model, other, **tolerance):
    for (name, parameter), (_, expected) in zip(
        model.named_parameters(), other.named_parameters(), strict=True
    ):
        torch.testing.assert_close(
            parameter, expected, msg=lambda text, name=name: f"{name}: {text}", **tolerance
        )


@pytest.mark.parametrize(("tied", "fused"), [(True, None), (False, True)])
def test_one_optimizer_equals_two_over_200_steps(tied, fused):
    settings = {"lr": 1e-2, "betas": (0.9, 0.95), "fused": fused}
    model, other = model_of(tied), model_of(tied)
    train(model, one_optimizer(model, **settings), batches(200))

    embeddings = [other.embedding.weight] if tied else [other.embedding.weight, other.head.weight]
    rest = [
        parameter
        for parameter in other.parameters()
        if not any(parameter is one for one in embeddings)
    ]
    coupled = CoupledAdam(embeddings, weight_decay=0.03, **settings)
    core = torch.optim.AdamW(
        [
            {"params": [p for p in rest if p.ndim >= 2], "weight_decay": 0.1},
            {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
        ],
        **settings,
    )
    for batch in batches(200):
        other.loss(batch).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        for optimizer in (coupled, core):
            optimizer.step()
            optimizer.zero_grad()
    assert_equal(model, other, rtol=0, atol=1e-12)
    assert not torch.equal(model.embedding.weight, model_of(tied).embedding.weight)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 1e-4},
        {"maximize": True},
        {"fused": True},
        {"lr": torch.tensor(1e-2)},
        {"capturable": False, "fused": False},
    ],
    ids=str,
)
def test_a_group_that_is_not_coupled_is_adamw_bit_for_bit(settings):
    model, other = model_of(dtype=torch.float32), model_of(dtype=torch.float32)
    settings = {"lr": 1e-2, "weight_decay": 0.0} | settings
    ours = CoupledAdam([{"params": model.parameters(), "coupled": False}], **settings)
    theirs = torch.optim.AdamW(other.parameters(), **settings)
    for batch in batches(30):
        for one, optimizer in ((model, ours), (other, theirs)):
            optimizer.zero_grad()
            one.loss(batch).backward()
            optimizer.step()
    assert_equal(model, other, rtol=0, atol=0)
    for parameter, expected in zip(model.parameters(), other.parameters(), strict=True):
        for name, value in theirs.state[expected].items():
            assert torch.equal(ours.state[parameter][name], value), name


def test_unmarked_groups_are_adamw_beside_marked_ones_and_coupled_by_themselves():
    matrices = [nn.Parameter(torch.ones(3, 2)) for _ in range(2)]
    marked = CoupledAdam([{"params": matrices[:1], "coupled": True}, {"params": matrices[1:]}])
    assert [group["coupled"] for group in marked.param_groups] == [True, False]
    marked.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    assert marked.param_groups[2]["coupled"] is False
    unmarked = CoupledAdam([{"params": matrices[:1]}, {"params": matrices[1:]}])
    assert [group["coupled"] for group in unmarked.param_groups] == [True, True]
    assert [group["coupled"] for group in CoupledAdam(iter(matrices)).param_groups] == [True]


def test_groups_without_gradients_are_left_alone():
    model = model_of()
    optimizer = one_optimizer(model)
    assert optimizer.clip_grad_norm_(model.parameters(), 1.0).item() == 0.0
    optimizer.step()
    assert not optimizer.state
    assert_equal(model, model_of(), rtol=0, atol=0)


def test_the_clip_covers_parameters_of_the_optimizer_that_were_not_given():
    model, other = model_of(), model_of()
    optimizer = one_optimizer(model)
    (batch,) = batches(1)
    for one in (model, other):
        (100 * one.loss(batch)).backward()
    expected = nn.utils.clip_grad_norm_(other.parameters(), 0.5)
    torch.testing.assert_close(optimizer.clip_grad_norm_([], 0.5), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        model.mlp[0].weight.grad, other.mlp[0].weight.grad, rtol=1e-12, atol=0
    )


# States


def through_bytes(state):
    """Return a state as it comes back from a file, read without running code."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize(
    ("tied", "fused", "dtype"),
    [
        (True, None, torch.float32),
        (False, True, torch.float32),
        (False, None, torch.bfloat16),
    ],
)
def test_a_saved_state_goes_on_bit_for_bit(tied, fused, dtype):
    steps = batches(20)
    model = model_of(tied, dtype)
    optimizer = one_optimizer(model, lr=1e-2, fused=fused)
    train(model, optimizer, steps[:10])
    resumed = LanguageModel(tied).to(dtype)
    resumed.load_state_dict(model.state_dict())
    again = one_optimizer(resumed, lr=123.0, fused=fused)
    again.load_state_dict(through_bytes(optimizer.state_dict()))
    for one, its_optimizer in ((model, optimizer), (resumed, again)):
        train(one, its_optimizer, steps[10:])
    assert_equal(resumed, model, rtol=0, atol=0)
    assert again.param_groups[0]["lr"] == 1e-2


def test_copies_and_pickles_go_on_alike():
    model = model_of()
    optimizer = one_optimizer(model, lr=1e-2)
    steps = batches(6)
    train(model, optimizer, steps[:3])
    both = [copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer)))]
    train(model, optimizer, steps[3:])
    for other, its_optimizer in both:
        train(other, its_optimizer, steps[3:])
        assert_equal(other, model, rtol=0, atol=0)


def test_a_state_with_other_marks_is_refused():
    model = model_of()
    groups = coupled_param_groups(model)
    optimizer = CoupledAdam(groups)
    swapped = CoupledAdam([group | {"coupled": False} for group in groups])
    with pytest.raises(
        ValueError,
        match=r"^param_groups: group 0 of the state is coupled and .* is not coupled; make",
    ):
        swapped.load_state_dict(optimizer.state_dict())


def test_a_state_from_before_there_were_marks_is_coupled():
    weight = nn.Parameter(torch.ones(3, 2))
    optimizer = CoupledAdam([weight])
    weight.grad = torch.ones(3, 2)
    optimizer.step()
    state = optimizer.state_dict()
    del state["param_groups"][0]["coupled"]
    again = CoupledAdam([weight])
    again.load_state_dict(state)
    assert again.param_groups[0]["coupled"] is True


def test_a_moment_of_another_shape_is_refused_in_an_adamw_group():
    optimizers = []
    for n_rows in (3, 4):
        weight = nn.Parameter(torch.ones(n_rows, 2))
        optimizers.append(CoupledAdam([{"params": [weight], "coupled": False}]))
        weight.grad = torch.ones_like(weight)
        optimizers[-1].step()
    with pytest.raises(
        ValueError,
        match=r"shape \(4, 2\); a parameter of shape \(3, 2\), not coupled, needs \(3, 2\)",
    ):
        optimizers[0].load_state_dict(optimizers[1].state_dict())


@pytest.mark.parametrize("how", ["state_dict", "optimizer"])
def test_a_whole_model_goes_on_from_adamw(how):
    """The moments go on; the second of the embedding is averaged, and all others are what AdamW's
    would be."""
    model, other = model_of(), model_of()
    adamws = [
        torch.optim.AdamW(
            [
                {name: value for name, value in group.items() if name != "coupled"}
                for group in coupled_param_groups(one, weight_decay=0.0)
            ],
            lr=1e-2,
        )
        for one in (model, other)
    ]
    steps = batches(6)
    for one, adamw in zip((model, other), adamws, strict=True):
        for batch in steps:
            adamw.zero_grad()
            one.loss(batch).backward()
            adamw.step()
    coupled = CoupledAdam(coupled_param_groups(model), lr=1e-2)
    if how == "state_dict":
        coupled.load_state_dict(adamws[0].state_dict())
    else:
        coupled.load_adamw_state(adamws[0])
    (batch,) = batches(1)
    for one, optimizer in ((model, coupled), (other, adamws[1])):
        optimizer.zero_grad()
        one.loss(batch).backward()
        optimizer.step()
    assert_equal(model.mlp, other.mlp, rtol=0, atol=0)
    assert coupled.state[model.embedding.weight]["exp_avg_sq"].shape == (D_MODEL,)
    assert not torch.equal(model.embedding.weight, other.embedding.weight)


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_a_whole_model_goes_back_to_adamw(scale):
    """AdamW's first step is the one that Coupled Adam would have made with this second moment."""
    model = model_of()
    coupled = one_optimizer(model, lr=1e-2)
    coupled.param_groups[0]["scale"] = scale
    train(model, coupled, batches(6))
    groups = [{"params": group["params"]} for group in coupled.param_groups]
    adamw = torch.optim.AdamW(groups, lr=123.0)
    adamw.load_state_dict(through_bytes(coupled.adamw_state_dict()))
    assert [group["weight_decay"] for group in adamw.param_groups] == [
        g["weight_decay"] for g in coupled.param_groups
    ]
    for group, its_group in zip(coupled.param_groups, adamw.param_groups, strict=True):
        assert (its_group["lr"], "coupled" in its_group) == (1e-2, False)
        for parameter in group["params"]:
            ours, theirs = coupled.state[parameter], adamw.state[parameter]
            factor = scale if group["coupled"] else 1.0
            torch.testing.assert_close(
                theirs["exp_avg_sq"], (factor * ours["exp_avg_sq"]).expand_as(parameter)
            )
            torch.testing.assert_close(theirs["exp_avg"], ours["exp_avg"])
            assert theirs["step"] == ours["step"]
    train(model, adamw, batches(6), clip=None)
    back = CoupledAdam(coupled_param_groups(model), lr=1e-2)
    back.load_state_dict(adamw.state_dict())
    train(model, back, batches(6))
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_loaded_state_shares_nothing_with_the_one_it_came_from():
    model = model_of()
    optimizer = one_optimizer(model, lr=1e-2)
    train(model, optimizer, batches(2))
    copied = copy.deepcopy(optimizer.state_dict())
    other = one_optimizer(model, lr=1e-2)
    other.load_state_dict(optimizer.state_dict())
    train(model, other, batches(2))
    torch.testing.assert_close(optimizer.state_dict(), copied, rtol=0, atol=0)


def test_a_grad_scaler_and_a_scheduler_reach_all_groups():
    model, other = model_of(dtype=torch.float32), model_of(dtype=torch.float32)
    optimizers = [one_optimizer(one, lr=1e-2) for one in (model, other)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    schedulers = [
        torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=5)
        for optimizer in optimizers
    ]
    for batch in batches(5):
        scaler.scale(model.loss(batch)).backward()
        scaler.unscale_(optimizers[0])
        optimizers[0].clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizers[0])
        scaler.update()
        other.loss(batch).backward()
        optimizers[1].clip_grad_norm_(other.parameters(), 1.0)
        optimizers[1].step()
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.zero_grad()
            scheduler.step()
    assert_equal(model, other, rtol=1e-6, atol=1e-7)
    assert [group["lr"] for group in optimizers[0].param_groups] == pytest.approx([1e-3] * 3)
