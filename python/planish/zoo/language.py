"""Language models of Transformers."""

from __future__ import annotations

import functools
from typing import Any

import torch
from planish.zoo.entry import LANGUAGE, Built, Entry, hugging_face, tokens

__all__ = ["MODELS", "SPECIAL", "TEXT"]

SPECIAL: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    **SPECIAL,
}
_MIXED: dict[str, Any] = {"layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def _text_inputs() -> dict[str, Any]:
    return {"input_ids": tokens(), "use_cache": False}


def _decoder(name: str, stem: str, config: str | None = None, **given: Any) -> Entry:
    return hugging_face(
        name,
        LANGUAGE,
        f"{stem}ForCausalLM",
        config or f"{stem}Config",
        _text_inputs,
        **{**TEXT, **given},
    )


_QWEN3_NEXT: dict[str, Any] = {
    **_EXPERTS,
    "shared_expert_intermediate_size": 32,
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
_DEEPSEEK: dict[str, Any] = {
    "moe_intermediate_size": 32,
    "num_key_value_heads": 2,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "head_dim": 8,
}
_MAMBA2: dict[str, Any] = {
    "hidden_size": 32,
    "num_heads": 4,
    "head_dim": 16,
    "expand": 2,
    "state_size": 8,
    "n_groups": 2,
    "num_hidden_layers": 2,
    "vocab_size": 100,
    "chunk_size": 8,
    **SPECIAL,
}
T5: dict[str, Any] = {
    "vocab_size": 100,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 2,
}


def _pictures(name: str, stem: str, vision: dict[str, Any], text: dict[str, Any]) -> Entry:
    """Text with one picture of 4 x 4 patches, merged two by two."""
    image, video, start = 90, 91, 92
    patch, frames, merged = 8, 2, 4

    def make() -> Built:
        import transformers

        transformers.logging.set_verbosity_error()
        config = getattr(transformers, f"{stem}Config")(
            text_config=text,
            vision_config={**vision, "patch_size": patch, "temporal_patch_size": frames},
            image_token_id=image,
            video_token_id=video,
            vision_start_token_id=start,
        )
        ids = torch.randint(3, 80, (1, 12))
        ids[0, 2], ids[0, 3 : 3 + merged] = start, image
        return getattr(transformers, f"{stem}ForConditionalGeneration")(config), {
            "input_ids": ids,
            "pixel_values": torch.randn(16, 3 * frames * patch * patch),
            "image_grid_thw": torch.tensor([[1, 4, 4]]),
            "mm_token_type_ids": (ids == image).long(),
            "use_cache": False,
        }

    return Entry(name, LANGUAGE, ("transformers",), make)


_WITH_PICTURES: dict[str, Any] = {
    **TEXT,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
}
_WITHOUT_HEAD: dict[str, Any] = {
    key: value for key, value in _WITH_PICTURES.items() if key != "head_dim"
}
_TOWER: dict[str, Any] = {"hidden_size": 32, "num_heads": 2, "spatial_merge_size": 2}

_GPT2: dict[str, Any] = {
    "vocab_size": 100,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 64,
}


def _both_sides() -> dict[str, Any]:
    return {"input_ids": tokens(), "decoder_input_ids": tokens(2, 8), "use_cache": False}


_of_gpt2 = functools.partial(hugging_face, "gpt2", LANGUAGE, "GPT2LMHeadModel", "GPT2Config")
_of_t5 = functools.partial(hugging_face, "t5", LANGUAGE, "T5ForConditionalGeneration", "T5Config")
_of_mamba2 = functools.partial(
    hugging_face, "mamba2", LANGUAGE, "Mamba2ForCausalLM", "Mamba2Config"
)

MODELS = [
    _decoder("llama", "Llama"),
    _decoder("mistral", "Mistral"),
    _decoder("qwen2", "Qwen2"),
    _decoder("qwen3", "Qwen3"),
    _decoder("qwen3_moe", "Qwen3Moe", **_EXPERTS),
    _decoder("qwen3_next", "Qwen3Next", **_QWEN3_NEXT),
    _decoder("gemma2", "Gemma2"),
    _decoder("gemma3", "Gemma3", "Gemma3TextConfig", **_MIXED),
    _decoder("deepseek_v3", "DeepseekV3", **_DEEPSEEK),
    _decoder(
        "gpt_oss",
        "GptOss",
        num_local_experts=4,
        num_experts_per_tok=2,
        intermediate_size=32,
        sliding_window=16,
        **_MIXED,
    ),
    _decoder("phi3", "Phi3"),
    _decoder("olmo2", "Olmo2"),
    _decoder("cohere2", "Cohere2", **_MIXED),
    _of_gpt2(_text_inputs, **_GPT2, bos_token_id=1, eos_token_id=2),
    _of_t5(_both_sides, **T5, decoder_start_token_id=0),
    _of_mamba2(_text_inputs, **_MAMBA2),
    _pictures(
        "qwen2_vl",
        "Qwen2VL",
        {**_TOWER, "depth": 2, "embed_dim": 32, "mlp_ratio": 2},
        _WITHOUT_HEAD,
    ),
    _pictures(
        "qwen2_5_vl",
        "Qwen2_5_VL",
        {
            **_TOWER,
            "depth": 2,
            "out_hidden_size": 32,
            "intermediate_size": 64,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
        _WITHOUT_HEAD,
    ),
    _pictures(
        "qwen3_vl",
        "Qwen3VL",
        {
            **_TOWER,
            "depth": 3,
            "out_hidden_size": 32,
            "intermediate_size": 64,
            "deepstack_visual_indexes": [0, 1],
            "num_position_embeddings": 16,
        },
        _WITH_PICTURES,
    ),
]
