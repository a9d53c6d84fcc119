"""Scores of items that share a row against one text at a time."""

import numpy as np
import pytest
import torch

from coupled_adam_bench.evaluation.scoring import Request, Scorer
from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.models.build import FAMILIES, build_model
from coupled_adam_bench.study.model import Model

V, WINDOW = 30, 24


def model_of(architecture: str) -> LanguageModel:
    settings = Model(
        name="small", architecture=architecture, n_layer=2, n_head=2, d_model=16, learning_rate=0.1
    )
    model = build_model(settings, V, WINDOW)
    model.init_weights(1, 0.7)
    return model.eval()


def alone(model: LanguageModel, request: Request) -> tuple[float, bool]:
    """The score of one text in a row of its own, from the logits of all its tokens."""
    tokens = torch.tensor(request.tokens)
    with torch.no_grad():
        logits_TV = model.hidden(tokens[None, :-1])[0] @ model.head_weight.T
    log_p_TV = logits_TV.double().log_softmax(1)[-request.n_scored :]
    targets = tokens[-request.n_scored :]
    is_greedy = bool((log_p_TV.argmax(1) == targets).all())
    return float(log_p_TV.gather(1, targets[:, None]).sum()), is_greedy


def items(seed: int) -> list[list[Request]]:
    """Items of 1 to 5 answers: of one context, of contexts that differ, equal ones, cut ones."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(12):
        context = rng.integers(V, size=rng.integers(1, WINDOW - 6))
        item = []
        for _ in range(rng.integers(1, 6)):
            own = context.copy()
            if rng.random() < 0.3:
                own[rng.integers(len(own))] = rng.integers(V)
            answer = rng.integers(V, size=rng.integers(1, 7))
            item.append(Request([*own.tolist(), *answer.tolist()], len(answer)))
        item.append(item[0])
        found.append(item)
    return found


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("max_tokens", [1, 100, 5000])
def test_a_score_is_that_of_the_text_alone(architecture: str, max_tokens: int) -> None:
    model, own = model_of(architecture), items(max_tokens)
    # Some answers are the likeliest text.
    for item in own[::2]:
        request = item[0]
        with torch.no_grad():
            seen = request.tokens[: -request.n_scored]
            hidden_D = model.hidden(torch.tensor([seen]))[0, -1]
        item.append(Request([*seen, int((hidden_D @ model.head_weight.T).argmax())], 1))
    found = [score for item in Scorer(model, max_tokens).score(own) for score in item]
    expected = [alone(model, request) for item in own for request in item]
    assert [score[1] for score in found] == [score[1] for score in expected]
    assert any(is_greedy for _, is_greedy in found)
    log_p, wanted = (np.array([score[0] for score in some]) for some in (found, expected))
    assert np.abs(log_p - wanted).max() < 2e-5
