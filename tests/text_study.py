"""A study on text of one's own, and a tokenizer that knows any text."""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from coupled_adam_bench.store.files import write_json

END = "<|endoftext|>"


def text_settings(**sections: Any) -> dict[str, Any]:
    """The settings of a study of one small cell; ``sections`` are merged into them, or replace
    them."""
    settings: dict[str, Any] = {
        "study": "files",
        "paths": {"text": "text", "tokenizer": "tokenizer"},
        "data": {
            "name": "files",
            "source": {"kind": "files"},
            "tokenizer": "file",
            "vocab_size": 512,
            "split": {"val_fraction": 0.2, "test_fraction": 0.2},
        },
        "models": ["gpt2-2x32"],
        "training": {"seq_len": 8, "batch_sequences": 2, "warmup_steps": 5},
        "grid": [{"models": ["gpt2-2x32"], "tokens": [{"steps": 10}], "optimizers": ["adamw"]}],
    }
    for section, changes in sections.items():
        is_merged = isinstance(changes, dict)
        settings[section] = settings.get(section, {}) | changes if is_merged else changes
    return settings


def cell_settings(seq_len: int, seeds: list[int]) -> dict[str, Any]:
    """The settings of a study whose cells tests make by hand, with :func:`byte_tokenizer`."""
    model = {"name": "m", "n_layer": 1, "n_head": 2, "d_model": 8, "learning_rate": 1e-3}
    block = {"models": ["m"], "tokens": [{"steps": 1}], "optimizers": ["adamw"], "seeds": seeds}
    training = {"seq_len": seq_len, "batch_sequences": 1, "warmup_steps": 0, "precision": "fp32"}
    return text_settings(data={"vocab_size": 260}, models=[model], training=training, grid=[block])


def write_tokenizer(tokenizer: Tokenizer, folder: Path, end: str = END) -> None:
    """Write a tokenizer as preparation does."""
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": end, "eos_token": end}
    write_json(folder / "tokenizer_config.json", config)


def byte_tokenizer(end: str = END) -> Tokenizer:
    """One token for each byte, and one for the end of a text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: place for place, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(end, special=True, normalized=False)])
    return tokenizer
