"""Compares the speed of GPT-2's BPE on one thread in tiktoken, which preparation uses, and in the library tokenizers.

Prints one JSON object: MB/s of each (the best of alternating repeats), their ratio, and whether the ids are identical.

    python benchmarks/tokenizer_speed.py [--text FILE_OR_FOLDER] [--tokenizer FOLDER] [--max-mb 8] [--repeats 3]

Without ``--text`` the text is a generated language; without ``--tokenizer`` GPT-2's is downloaded. The file is not
named tokenizers.py, because Python would then import it in place of the library.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from coupled_adam_bench.data.sources import Corpus
from coupled_adam_bench.data.synthetic import Language
from coupled_adam_bench.data.tokenizers import Encoder, Gpt2Encoder, TokenizersEncoder, save_tokenizer
from coupled_adam_bench.study.config import Study, SyntheticSource, parse_study


def make_study(text: str | None, tokenizer: str | None) -> Study:
    values: dict[str, Any] = {
        "study": "benchmark",
        "paths": {"text": text or ".", "tokenizer": tokenizer},
        "data": {"name": "text", "source": {"kind": "files"}, "tokenizer": "gpt2", "vocab_size": 50304},
        "models": ["gpt2-2x32"],
        "grid": [{"models": ["gpt2-2x32"], "tokens": ["1M"], "optimizers": ["adamw"]}],
    }
    return parse_study(values)


def read_texts(study: Study, generated: bool, max_bytes: float) -> list[str]:
    language = Language(SyntheticSource())
    documents = map(language.text, language.shard(0)) if generated else Corpus(study)
    texts: list[str] = []
    n_bytes = 0
    for text in documents:
        texts.append(text)
        n_bytes += len(text.encode())
        if n_bytes >= max_bytes:
            break
    return texts


def seconds(encoder: Encoder, texts: list[str]) -> float:
    start = time.process_time()
    for text in texts:
        encoder.encode(text)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--text")
    parser.add_argument("--tokenizer")
    parser.add_argument("--max-mb", type=float, default=8.0)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    study = make_study(arguments.text, arguments.tokenizer)
    texts = read_texts(study, arguments.text is None, arguments.max_mb * 1e6)
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(study, None, Path(folder))
        encoders: dict[str, Encoder] = {
            "tiktoken": Gpt2Encoder(Path(folder)),
            "tokenizers": TokenizersEncoder(Path(folder)),
        }
        identical = all(
            encoders["tiktoken"].encode(text).tolist() == encoders["tokenizers"].encode(text).tolist() for text in texts
        )
    best = dict.fromkeys(encoders, float("inf"))
    for _ in range(arguments.repeats):
        for name, encoder in encoders.items():
            best[name] = min(best[name], seconds(encoder, texts))
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    result = {
        "text_mb": megabytes,
        "tiktoken_mb_per_s": megabytes / best["tiktoken"],
        "tokenizers_mb_per_s": megabytes / best["tokenizers"],
        "ratio": best["tokenizers"] / best["tiktoken"],
        "identical": identical,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
