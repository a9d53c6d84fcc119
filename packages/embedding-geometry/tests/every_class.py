"""Small models of every class of language models that transformers has, with weights drawn at
random."""

from typing import Any

import torch

MOST_PARAMETERS = 20_000_000
_SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "d_model": 32,
    "n_embd": 32,
    "dim": 32,
    "emb_dim": 32,
    "embedding_size": 32,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "num_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "depth": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "intermediate_size": 48,
    "n_inner": 48,
    "ffn_dim": 48,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "hidden_dim": 48,
    "moe_intermediate_size": 16,
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "image_size": 28,
    "patch_size": 14,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "state_size": 8,
    "vocab_size_per_layer_input": 96,
    "hidden_size_per_layer_input": 8,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
}


def language_models() -> dict[str, tuple[Any, Any]]:
    """The class and the class of configuration of each causal and masked language model, by the
    name of the class."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    mappings = (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING)
    return {
        model.__name__: (model, config) for mapping in mappings for config, model in mapping.items()
    }


def small_config(config_class: Any) -> Any:
    """The configuration with small sizes, in the configurations that are part of it too."""
    default = config_class()
    values: dict[str, Any] = {}
    for name in default.to_dict():
        part = getattr(default, name, None)
        if hasattr(part, "to_dict") and hasattr(part, "model_type"):
            values[name] = small_config(type(part)).to_dict()
        elif name in _SMALL and isinstance(part, int):
            values[name] = _SMALL[name]
        elif name in ("layer_types", "mlp_layer_types") and isinstance(part, list):
            values[name] = part[:2]
    return config_class(**values)


def small_model(name: str) -> Any:
    """A small model of a class with drawn weights; ``ValueError`` if its configuration does not
    become small."""
    model_class, config_class = language_models()[name]
    config = small_config(config_class)
    with torch.device("meta"):
        n_parameters = sum(each.numel() for each in model_class(config).parameters())
    if n_parameters > MOST_PARAMETERS:
        raise ValueError(f"{n_parameters:,} parameters")
    torch.manual_seed(0)
    model = model_class(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.1, 0.5)
    return model
