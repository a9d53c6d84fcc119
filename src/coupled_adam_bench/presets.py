"""Tables of the paper's models, data sets, tasks and word-similarity sets."""

from typing import Any

# Paper, table of hyperparameters: layers, heads, width and peak learning rate [P].
MODEL_PRESETS: dict[str, dict[str, Any]] = {
    name: {
        "name": name,
        "label": label,
        "architecture": architecture,
        "n_layer": n_layer,
        "n_head": n_head,
        "d_model": d_model,
        "learning_rate": learning_rate,
    }
    for name, label, architecture, n_layer, n_head, d_model, learning_rate in (
        ("gpt2-125m", "125M", "gpt2", 12, 12, 768, 6.0e-4),
        ("gpt2-355m", "355M", "gpt2", 24, 16, 1024, 3.0e-4),
        ("gpt2-760m", "760M", "gpt2", 24, 16, 1536, 2.5e-4),
        ("stablelm-1.3b", "1.3B", "stablelm", 24, 32, 2048, 2.0e-4),
        ("stablelm-2.6b", "2.6B", "stablelm", 32, 32, 2560, 1.6e-4),
        # Ours, for tests, the demo and small machines.
        ("gpt2-4x256", None, "gpt2", 4, 4, 256, 1.0e-3),
        ("gpt2-2x64", None, "gpt2", 2, 2, 64, 3.0e-3),
        ("gpt2-2x32", None, "gpt2", 2, 2, 32, 3.0e-3),
    )
}

HUB_PRESETS: dict[str, dict[str, Any]] = {
    "openwebtext": {"dataset": "Skylion007/openwebtext"},
    "slimpajama": {"dataset": "cerebras/SlimPajama-627B"},
}

# Paper's downstream tasks [C].
PAPER_TASKS = ("hellaswag", "winogrande", "arc_easy", "arc_challenge", "truthfulqa_mc2", "lambada_openai", "race")

# Paper's word-similarity sets under the names of their public files [C].
PAPER_WORD_SIMILARITY: tuple[dict[str, Any], ...] = (
    {"name": "men", "file": "MEN_dataset_lemma_form_full", "strip_pos": True},
    {"name": "rw", "file": "rw.txt"},
    {"name": "simlex999", "file": "SimLex-999.txt", "columns": (0, 1, 3)},
    {"name": "wordsim353-similarity", "file": "wordsim_similarity_goldstandard.txt"},
    {"name": "wordsim353-relatedness", "file": "wordsim_relatedness_goldstandard.txt"},
)
