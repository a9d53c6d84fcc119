"""Fine-tunes a tiny language model with AdamW and with Coupled Adam, and prints the isotropy of its
embeddings before and after.

    pip install coupled-adam transformers
    python finetune.py [--model FOLDER_OR_NAME]

Without ``--model`` it is a GPT-2 of two layers with drawn weights, and nothing is downloaded. The
text is drawn by Zipf's law, since rare tokens are what pulls the embeddings of Adam to one side.
"""

import argparse
import copy

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from coupled_adam import CoupledAdam, coupled_param_groups

STEPS, BATCH, LENGTH, LEARNING_RATE = 150, 16, 32, 3e-3


def isotropy(embeddings_VD: torch.Tensor) -> float:
    """Return min Z(c) / max Z(c), Z(c) = sum_i exp(c . e_i), over the principal directions c with
    both signs (Mu & Viswanath 2018); 1 is isotropic."""
    e_VD = embeddings_VD.detach().double()
    directions_DD = torch.linalg.eigh(e_VD.T @ e_VD).eigenvectors
    projections_VK = e_VD @ torch.cat([directions_DD, -directions_DD], dim=1)
    log_z_K = projections_VK.logsumexp(dim=0)
    return float((log_z_K.min() - log_z_K.max()).exp())


def train(model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> float:
    """Train a model on text whose every token is decided by the one before, in half of the cases,
    and return the mean loss of the last ten steps."""
    vocab_size = model.config.vocab_size
    generator = torch.Generator().manual_seed(1)
    frequency_V = 1 / torch.arange(1, vocab_size + 1)
    losses = []
    for _ in range(STEPS):
        drawn = torch.multinomial(frequency_V, BATCH * LENGTH, True, generator=generator)
        tokens = drawn.view(BATCH, LENGTH)
        follows = torch.rand(BATCH, LENGTH - 1, generator=generator) < 0.5
        tokens[:, 1:][follows] = (7 * tokens[:, :-1][follows] + 1) % vocab_size
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return sum(losses[-10:]) / 10


def main() -> None:
    """Train a copy of one model with each optimizer."""
    parser = argparse.ArgumentParser(description="Isotropy before and after fine-tuning")
    parser.add_argument("--model", help="a folder or a name that transformers knows")
    name = parser.parse_args().model
    torch.manual_seed(0)
    shape = {"vocab_size": 512, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 2}
    config = GPT2Config(**shape, bos_token_id=0, eos_token_id=0)
    start = AutoModelForCausalLM.from_pretrained(name) if name else GPT2LMHeadModel(config)
    print(f"{'before':13}isotropy {isotropy(start.get_input_embeddings().weight):.3f}")
    for title in ("AdamW", "Coupled Adam"):
        model = copy.deepcopy(start)
        groups = coupled_param_groups(model, weight_decay=0.1)
        if title == "AdamW":
            groups = [{**group, "coupled": False} for group in groups]
        loss = train(model, CoupledAdam(groups, lr=LEARNING_RATE, betas=(0.9, 0.95)))
        found = isotropy(model.get_input_embeddings().weight)
        print(f"{title:13}isotropy {found:.3f}, loss {loss:.3f}")


if __name__ == "__main__":
    main()
