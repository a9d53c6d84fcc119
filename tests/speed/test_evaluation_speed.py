"""Log-likelihoods of answers beside lm-eval's own `hf`, with the vocabulary of the paper."""

from functools import partial

import numpy as np
import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from coupled_adam_bench.evaluation.downstream import Encoder
from coupled_adam_bench.evaluation.scoring import Request, Scorer
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.models.export import load_model, save_model
from coupled_adam_bench.store.files import write_json
from coupled_adam_bench.study.catalogue.presets import MODEL_PRESETS
from coupled_adam_bench.study.model import Model as Settings

VOCAB_SIZE, SEQ_LEN, AT_ONCE, N_ITEMS = 50_304, 256, 16, 16


def requests():
    """Items with a text of half a page, as those of RACE, and four answers of up to a sentence."""
    generator = np.random.default_rng(0)

    def words(least, most):
        ids = generator.integers(VOCAB_SIZE, size=generator.integers(least, most))
        return " ".join(f"w{word}" for word in ids)

    for item in range(N_ITEMS):
        text = words(100, 220)
        for answer in range(4):
            arguments = text, f" {words(1, 16)}"
            yield Instance("loglikelihood", {}, arguments, answer, ("items", item, 1))


@pytest.mark.filterwarnings("default")
def test_scoring_is_at_least_8_times_as_fast_as_lm_eval_s_hf(tmp_path, ratio):
    vocabulary = {f"w{word}": word for word in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    saved = tmp_path / "tokenizer"
    saved.mkdir()
    tokenizer.save(str(saved / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w0"}
    write_json(saved / "tokenizer_config.json", config)
    model = build_model(Settings(**MODEL_PRESETS["gpt2-4x256"]), VOCAB_SIZE, SEQ_LEN)
    model.init_weights(0, 0.1)
    save_model(model, model.state_dict(), tmp_path / "model", saved, 0)

    scorer = Scorer(load_model(tmp_path / "model"), AT_ONCE * SEQ_LEN, False)
    encoder = Encoder(tokenizer, 0)
    settings = {"device": "cpu", "dtype": "float32", "max_length": SEQ_LEN}
    theirs = HFLM(str(tmp_path / "model"), backend="causal", batch_size=AT_ONCE, **settings)
    asked = [*requests()]

    def ours():
        pairs = encoder.loglikelihood(asked, disable_tqdm=True)
        encoded = [Request([*context, *answer], len(answer)) for _, context, answer in pairs]
        return scorer.score([encoded[first : first + 4] for first in range(0, len(asked), 4)])

    fraction = ratio(ours, partial(theirs.loglikelihood, asked, disable_tqdm=True), 1)
    found, wanted = np.concatenate(ours()), np.array(theirs.loglikelihood(asked))
    assert (found[:, 1] == wanted[:, 1]).all()
    assert found[:, 0] == pytest.approx(wanted[:, 0], rel=1e-4)
    assert fraction <= 1 / 8
