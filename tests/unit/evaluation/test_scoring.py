"""Log-likelihoods, against lm-eval's own model and against one plain forward pass for each
request."""

import math
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from coupled_adam_bench.evaluation.trees import TokenRequest, Tree, batch_of, build_trees, pack
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM

from coupled_adam_bench.evaluation import scoring
from coupled_adam_bench.evaluation.harness_model import HarnessModel
from coupled_adam_bench.evaluation.scoring import Scorer
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.models.export import load_model, save_model
from coupled_adam_bench.store.files import read_json, write_json
from coupled_adam_bench.study.settings import Model, parse_study

SEQ_LEN, VOCAB_SIZE, SEQUENCES = 24, 11, 3
MODELS = {"gpt2": {"tied": True}, "stablelm": {"tied": False}}

Pair = tuple[list[int], list[int]]


def made_up_requests() -> list[Pair]:
    """Context and continuation of requests of all kinds, as tokens."""
    draw = random.Random(5)

    def text(n: int) -> list[int]:
        return [draw.randrange(VOCAB_SIZE) for _ in range(n)]

    found: list[Pair] = []
    for length in (1, 7, 15):  # questions with answers of several lengths
        question = text(length)
        found += [(question, text(n)) for n in (1, 1, 1, 4, 9)]
        found.append(found[-1])  # an answer that is there twice
    question = text(
        30
    )  # longer than the model, so that answers of different lengths begin at different places
    found += [(question, text(n)) for n in (1, 1, 2, 5, SEQ_LEN)]
    found += [
        (text(SEQ_LEN - 2), text(n)) for n in (1, 2, 3, 4)
    ]  # one that just fits, and its neighbours
    prompt = text(8)  # examples that all questions have in common
    found += [([*prompt, *text(3)], text(2)) for _ in range(4)]
    found += [(text(n), text(3)) for n in (2, 5)]  # nothing in common
    begun = text(6)
    found += [
        (begun[:n], begun[n:]) for n in (1, 3, 5)
    ]  # one text, of which different parts are scored
    draw.shuffle(found)
    return found


REQUESTS = made_up_requests()
ENCODED = [
    TokenRequest(np.array(context + answer, np.int32), len(answer)) for context, answer in REQUESTS
]


@pytest.fixture(scope="module", params=list(MODELS))
def folder(request, tmp_path_factory) -> Path:
    """A model of each architecture that is sure of itself, and a tokenizer of one token a word."""
    root = tmp_path_factory.mktemp(request.param)
    (root / "tokenizer").mkdir()
    tokenizer = Tokenizer(
        WordLevel({f"w{index}": index for index in range(VOCAB_SIZE)}, unk_token="w0")
    )
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(root / "tokenizer/tokenizer.json"))
    names = {"bos_token": "w0", "eos_token": "w0"}
    write_json(
        root / "tokenizer/tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", **names},
    )
    sizes = {"name": "m", "n_layer": 2, "n_head": 2, "d_model": 16, "learning_rate": 1e-3}
    settings = Model(architecture=request.param, **sizes, **MODELS[request.param])
    model = build_model(settings, VOCAB_SIZE, SEQ_LEN)
    model.init_weights(1, 0.6)
    save_model(model, root / "model", root / "tokenizer", eot_id=0)
    return root / "model"


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder)


@pytest.fixture(scope="module")
def plain(folder) -> list[tuple[float, bool]]:
    """The definition: each request by itself, in float64, by the class of transformers."""
    found = []
    double = AutoModelForCausalLM.from_pretrained(folder).double()
    for context, answer in REQUESTS:
        tokens = torch.tensor((context + answer)[-(SEQ_LEN + 1) :])
        with torch.no_grad():
            log_p_TV = double(tokens[None, :-1]).logits[0, -len(answer) :].log_softmax(-1)
        log_p = sum(float(log_p_TV[place, token]) for place, token in enumerate(answer))
        found.append((log_p, log_p_TV.argmax(-1).tolist() == answer))
    return found


def check(
    found: list[tuple[float, bool]], expected: list[tuple[float, bool]], tolerance: float = 1e-4
) -> None:
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    np.testing.assert_allclose(
        [x for x, _ in found], [x for x, _ in expected], rtol=0, atol=tolerance
    )


def test_the_scores_of_plain_forward_passes(model, plain):
    assert any(greedy for _, greedy in plain) and min(log_p for log_p, _ in plain) < -20
    check(Scorer(model, SEQ_LEN, SEQUENCES * SEQ_LEN).score(ENCODED), plain)


def test_the_scores_of_lm_eval(folder, model):
    from lm_eval.models.huggingface import HFLM

    # The cache of lm-eval 0.4.13 gives wrong logits where one text is asked for with continuations
    # of several lengths.
    hf = HFLM(
        pretrained=str(folder),
        dtype="float32",
        device="cpu",
        batch_size=SEQUENCES,
        max_length=SEQ_LEN,
        backend="causal",
        logits_cache=False,
    )
    texts = [
        (" ".join(map(str, context)), " ".join(map(str, answer))) for context, answer in REQUESTS
    ]
    theirs = hf._loglikelihood_tokens(
        [(text, *pair) for text, pair in zip(texts, REQUESTS, strict=True)], disable_tqdm=True
    )
    check(Scorer(model, SEQ_LEN, SEQUENCES * SEQ_LEN).score(ENCODED), theirs)


@pytest.mark.parametrize("max_tokens", [1, 50, 10**6])
def test_budgets_and_the_order_of_requests_change_nothing(model, plain, max_tokens, monkeypatch):
    order = random.Random(max_tokens).sample(range(len(ENCODED)), len(ENCODED))
    monkeypatch.setitem(scoring._LOGITS_CHUNK, "cpu", 5 * max_tokens)
    found = Scorer(model, SEQ_LEN, max_tokens).score([ENCODED[number] for number in order])
    check(found, [plain[number] for number in order])
    assert Scorer(model, SEQ_LEN, max_tokens).score([]) == []


def test_each_token_is_read_once_and_scored_once(model, monkeypatch):
    """Count the tokens that the layers and the head are given."""
    read, scored = [], []
    question, answers = [7] * 12, [[1], [2], [3, 4], [3, 4], [3, 5, 6]]
    requests = [
        TokenRequest(np.array(question + answer, np.int32), len(answer)) for answer in answers
    ]
    score_nodes = scoring._score_nodes
    monkeypatch.setattr(
        scoring, "_score_nodes", lambda *given: scored.append(len(given[2])) or score_nodes(*given)
    )
    hook = model.blocks[0].register_forward_hook(
        lambda _m, given, _o: read.append(given[0][..., 0].numel())
    )
    Scorer(model, SEQ_LEN, 1000).score(requests)
    hook.remove()
    # 3 is read once for three answers, and 5 for the last; scored are the question's end, 3 and 5.
    assert (read, scored) == ([12 + 1 + 1], [3])


def test_bfloat16_is_close(model, plain):
    found = Scorer(model, SEQ_LEN, 200, bf16=True).score(ENCODED)
    for (log_p, _), (expected, _) in zip(found, plain, strict=True):
        assert log_p == pytest.approx(expected, rel=0.1, abs=1.0)
    assert found != Scorer(model, SEQ_LEN, 200).score(ENCODED)


@pytest.mark.parametrize("chunk", [5, 2**20])
def test_of_equally_likely_tokens_the_first_is_the_likeliest(folder, chunk, monkeypatch):
    """lm-eval takes the argmax, too; of bfloat16 logits many are equal."""
    monkeypatch.setitem(scoring._LOGITS_CHUNK, "cpu", chunk)
    model = load_model(folder)
    context = [9, 1, 2]
    with torch.no_grad():
        direction = model.hidden(torch.tensor([context]))[0, -1]
        model.head_weight[[3, 7]] = 100 * direction  # the context has neither
    requests = [TokenRequest(np.array([*context, token], np.int32), 1) for token in (3, 7, 4)]
    (first, is_first), (second, is_second), (_, is_other) = Scorer(model, SEQ_LEN, 100).score(
        requests
    )
    assert first == second == pytest.approx(-math.log(2), abs=1e-5)
    assert (is_first, is_second, is_other) == (True, False, False)


def test_weights_that_are_no_numbers_give_no_numbers(folder):
    model = load_model(folder)
    with torch.no_grad():
        model.embedding.weight[3] = math.nan
    requests = [TokenRequest(np.array(tokens, np.int32), 1) for tokens in ([3, 1, 2], [1, 2, 1])]
    (bad, _), (_, _) = Scorer(model, SEQ_LEN, 100).score(requests)
    assert math.isnan(bad)


def open_both(folder, tiny_study):
    """Return our model for lm-eval and lm-eval's own, of one folder."""
    from lm_eval.models.huggingface import HFLM

    settings = tiny_study(
        training={"seq_len": SEQ_LEN, "batch_sequences": 4, "warmup_steps": 0, "precision": "fp32"}
    )
    hf = HFLM(
        pretrained=str(folder),
        dtype="float32",
        device="cpu",
        batch_size=SEQUENCES,
        max_length=SEQ_LEN,
    )
    return HarnessModel(folder, parse_study(settings)), hf


def test_special_tokens_are_added_as_by_lm_eval(folder, tmp_path, tiny_study):
    """A tokenizer of the user's own may put a token before each text."""
    begun = shutil.copytree(folder, tmp_path / "begun")
    tokenizer = Tokenizer.from_file(str(begun / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="w0 $A", special_tokens=[("w0", 0)])
    tokenizer.save(str(begun / "tokenizer.json"))
    ours, theirs = open_both(begun, tiny_study)
    assert ours.prefix_token_id == theirs.prefix_token_id == 0
    for text in ("w1 w2", "w0 w3", ""):
        for special in (None, True, False):
            assert ours.tok_encode(text, special) == theirs.tok_encode(text, special)
    assert ours.tok_encode("w1 w2") == [0, 1, 2]


def test_scores_have_the_cap_of_the_trained_model(folder, tmp_path):
    config = read_json(folder / "config.json")
    capped = shutil.copytree(folder, tmp_path / "capped")
    write_json(capped / "config.json", config | {"soft_cap": 2.0})
    ours = load_model(capped)
    tokens = torch.arange(1, 9)[None]
    with torch.no_grad():
        expected = ours.logits(tokens)
        assert load_model(folder).logits(tokens).abs().max() > 3 > 2 >= expected.abs().max()
    log_p = expected[0, 2:7].log_softmax(-1).gather(1, tokens[0, 3:8, None]).sum().item()
    ((found, _),) = Scorer(ours, SEQ_LEN, 100).score(
        [TokenRequest(np.arange(1, 9, dtype=np.int32), 5)]
    )
    assert found == pytest.approx(log_p, abs=1e-4)


# Trees of common beginnings, against the texts that they are made of.


def request(text: list[int], n_continuation: int = 1) -> TokenRequest:
    return TokenRequest(np.array(text, np.int32), n_continuation)


@st.composite
def different_requests(draw) -> list[TokenRequest]:
    """Requests over few tokens, so that many begin alike and some are the beginning of others."""
    texts = draw(
        st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=9), min_size=1, max_size=20)
    )
    found = {}
    for text in texts:
        n = draw(st.integers(1, len(text) - 1))
        found[tuple(text), n] = request(text, n)
    return list(found.values())


def above(tree: Tree, node: int) -> list[int]:
    """The nodes that a node sees, as the model's attention mask has them."""
    return [other for other in range(len(tree.tokens)) if other <= node < tree.ends[other]]


@given(different_requests(), st.sampled_from([1, 8, 10**6]), st.sampled_from([1, 6, 1000]))
def test_every_request_is_read_from_its_tree(requests, width, max_nodes):
    trees = build_trees(requests, width, max_nodes)
    seen = []
    for tree in trees:
        for number, nodes, continuation in tree.scored:
            seen.append(number)
            tokens, n = requests[number]
            assert continuation.tolist() == tokens[-n:].tolist()
            path = above(tree, nodes[-1])
            assert [tree.tokens[node] for node in path] == tokens[:-1].tolist()
            assert [tree.depths[node] for node in path] == list(range(len(path)))
            assert nodes == path[-n:]
        assert len(tree.tokens) <= max(
            max_nodes, *(len(requests[number].tokens) - 1 for number, _, _ in tree.scored)
        )
        assert tree.is_chain == all(
            len(above(tree, node)) == node + 1 for node in range(len(tree.tokens))
        )
    assert sorted(seen) == list(range(len(requests)))
    assert sum(len(tree.tokens) for tree in trees) <= sum(len(one.tokens) - 1 for one in requests)


@given(different_requests(), st.integers(1, 40))
def test_batches_hold_every_tree_within_the_budget(requests, max_tokens):
    trees = build_trees(requests, 10**6, 1000)
    batches = pack(trees, max_tokens)
    assert sorted(map(id, trees)) == sorted(id(tree) for batch in batches for tree in batch)
    for trees_of_batch in batches:
        batch = batch_of(trees_of_batch)
        assert batch.tokens.size <= max_tokens or len(trees_of_batch) == 1
        assert list(batch.nodes) == sorted(batch.nodes)
        padding = np.concatenate(
            [
                np.arange(len(tree.tokens), batch.tokens.shape[1]) + index * batch.tokens.shape[1]
                for index, tree in enumerate(trees_of_batch)
            ]
        )
        assert not set(padding) & set(batch.nodes)
        column = np.tile(np.arange(batch.tokens.shape[1]), len(trees_of_batch))
        assert (batch.ends.ravel()[padding] == column[padding] + 1).all()  # it sees only itself
    sizes = [len(tree.tokens) for batch in batches for tree in batch]
    assert sizes == sorted(sizes, reverse=True)


def test_a_question_with_its_answers_by_hand():
    question = [5, 6, 7]
    answers = [[8], [9], [8, 3], [4, 4, 4]]
    (tree,) = build_trees([request(question + answer, len(answer)) for answer in answers], 100, 100)
    # The last token of an answer is no input: both one-token answers are read from the last token
    # of the question.
    assert tree.tokens == [5, 6, 7, 4, 4, 8]
    assert tree.depths == [0, 1, 2, 3, 4, 3]
    assert tree.ends == [6, 6, 6, 5, 5, 6]
    scored = {number: (nodes, continuation.tolist()) for number, nodes, continuation in tree.scored}
    assert scored == {0: ([2], [8]), 1: ([2], [9]), 2: ([2, 5], [8, 3]), 3: ([2, 3, 4], [4, 4, 4])}


def test_a_short_common_beginning_is_read_again_where_that_is_less_work():
    alike = [request([1, *range(2, 40)]), request([1, *range(50, 90)])]
    assert len(build_trees(alike, 10**6, 1000)) == 1  # attention is for nothing in a wide model
    assert len(build_trees(alike, 1, 1000)) == 2
