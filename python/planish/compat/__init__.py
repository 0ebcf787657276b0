"""The names and signatures of other libraries' norms, on planish.

    from planish.compat.flash_attn import layer_norm_fn, rms_norm_fn, RMSNorm
    from planish.compat.liger import LigerRMSNorm, apply_planish_to
    from planish.compat.quack import rmsnorm
    from planish.compat.flashinfer import fused_add_rmsnorm
    from planish.compat.transformer_engine import LayerNorm, RMSNorm

Each module has the signatures, defaults, order of results and types of exceptions of the library it
is named after, and imports nothing of it: neither it nor Triton has to be installed. Nothing is put
under the other library's own name. What differs is said in the docstrings and in
docs/guide/compat.md. ``planish.compat.vllm`` registers planish as a provider of vLLM's norms.
"""
