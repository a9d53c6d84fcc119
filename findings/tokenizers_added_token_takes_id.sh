#!/usr/bin/env bash
# A token that is added to a vocabulary with a hole in its ids gets the number of tokens as id,
# not the next free one, and so may share the id of another token.
#
# Versions: tokenizers 0.23.3. Seen on 2026-11-27 with Python 3.11 on Linux, x86-64, without a
# GPU.
# Guess: a new token gets an id that no token has, mostly the highest plus one. Sure: 80 %.
# Who meets it: who prunes a vocabulary, keeps the old ids, and adds tokens afterwards.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tokenizers==0.23.3
cd "$folder"
venv/bin/python - <<'END'
import sys

from tokenizers import Tokenizer, models, pre_tokenizers

vocabulary = {"king": 0, "queen": 1, "[UNK]": 3}  # the token with id 2 was pruned
tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.add_tokens(["[MASK]"])
seen = {"ids": tokenizer.encode("king [MASK] unheard").ids, "vocabulary": tokenizer.get_vocab()}
expected = {"ids": [0, 3, 3], "vocabulary": {"king": 0, "queen": 1, "[UNK]": 3, "[MASK]": 3}}
print(seen)
sys.exit(seen != expected)
END
