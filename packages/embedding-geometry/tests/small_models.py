"""Models of several families, built small with transformers, a tokenizer for them, and both on disk
as fixtures."""

import itertools
import random
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

N_ROWS = 100
WORDS = ("sun", "moon", "cat", "dog", "tree", "house", "red", "green")
_TOKENS: dict[str, Any] = {
    "vocab_size": N_ROWS,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
_LAYER: dict[str, Any] = {
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}
_SIZE: dict[str, Any] = {**_TOKENS, **_LAYER, "hidden_size": 16}
_LLAMA: dict[str, Any] = {**_SIZE, "intermediate_size": 32, "num_key_value_heads": 2, "head_dim": 8}
# Family: class, configuration, arguments, tied, names of the input and the output matrix in the
# checkpoint.
FAMILIES: dict[str, tuple[str, str, dict[str, Any], bool, str, str]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {**_TOKENS, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32},
        True,
        "transformer.wte.weight",
        "lm_head.weight",
    ),
    "llama": (
        "LlamaForCausalLM",
        "LlamaConfig",
        _LLAMA,
        False,
        "model.embed_tokens.weight",
        "lm_head.weight",
    ),
    "gpt_neox": (
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        {**_SIZE, "intermediate_size": 32},
        False,
        "gpt_neox.embed_in.weight",
        "embed_out.weight",
    ),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {**_SIZE, "ffn_dim": 32, "word_embed_proj_dim": 8},
        True,
        "model.decoder.embed_tokens.weight",
        "lm_head.weight",
    ),
    "gemma": (
        "GemmaForCausalLM",
        "GemmaConfig",
        _LLAMA,
        True,
        "model.embed_tokens.weight",
        "lm_head.weight",
    ),
    "qwen2": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        _LLAMA,
        False,
        "model.embed_tokens.weight",
        "lm_head.weight",
    ),
    "bert": (
        "BertForMaskedLM",
        "BertConfig",
        {**_SIZE, "intermediate_size": 32},
        True,
        "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.weight",
    ),
}


def byte_level() -> Tokenizer:
    """GPT-2's form, with each of the words behind a space as one token."""
    symbols = {letter: number for number, letter in enumerate(string.ascii_lowercase + "Ġ")}
    merges = []
    for word in WORDS:
        for end in range(1, len(word) + 1):
            pair = (f"Ġ{word}"[:end], f"Ġ{word}"[end])
            merges.append(pair)
            symbols.setdefault("".join(pair), len(symbols))
    tokenizer = Tokenizer(models.BPE(symbols, list(dict.fromkeys(merges))))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def build(family: str) -> Any:
    """A model with weights far from its initialisation, drawn from the seed 0."""
    import transformers

    model_class, config_class, arguments, *_ = FAMILIES[family]
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**arguments))
    with torch.no_grad():
        for matrix in {
            id(m): m.weight for m in (model.get_input_embeddings(), model.get_output_embeddings())
        }.values():
            matrix.normal_(0.1, 0.5)
    return model


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's model, with a tokenizer, built once; do not write into it."""
    root = tmp_path_factory.mktemp("families")

    def saved(family: str) -> Path:
        folder = root / family
        if not folder.exists():
            build(family).save_pretrained(folder)
            byte_level().save(str(folder / "tokenizer.json"))
        return folder

    return saved


@pytest.fixture(scope="session")
def pairs_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of all pairs of the words and one that is no single token; its lines end as on
    Windows."""
    drawn = random.Random(0)
    pairs = itertools.combinations((*WORDS, "suncat"), 2)
    file = tmp_path_factory.mktemp("lists") / "own.tsv"
    file.write_bytes("".join(f"{a}\t{b}\t{10 * drawn.random():.2f}\r\n" for a, b in pairs).encode())
    return file
