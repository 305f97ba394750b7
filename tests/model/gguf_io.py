"""qwen35 GGUF files: written from named tensors, read back as dequantised float32."""

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q

import qwen35
import tokenizer as bpe


def keep_f32(name, shape):
    """Norms, the convolution, ssm_a and ssm_dt stay F32 in every file."""
    return len(shape) == 1 or "ssm_conv1d" in name


def write(path, name, shape, w, vocab, merges, types, quant_of, quantize=gguf.quants.quantize):
    """`quant_of(name)` gives the type of each matrix. Returns the dequantised tensors as they are in the file."""
    s, arch = shape, "qwen35"
    out = gguf.GGUFWriter(path, arch)
    out.add_name(name)
    out.add_type("model")
    kinds = {n: Q.F32 if keep_f32(n, t) else quant_of(n) for n, t in s.tensors().items()}
    most = max(set(kinds.values()), key=lambda k: sum(np.prod(t) for n, t in s.tensors().items() if kinds[n] == k))
    out.add_file_type({Q.F32: gguf.LlamaFileType.ALL_F32, Q.F16: gguf.LlamaFileType.MOSTLY_F16,
                       Q.Q8_0: gguf.LlamaFileType.MOSTLY_Q8_0, Q.Q4_0: gguf.LlamaFileType.MOSTLY_Q4_0,
                       Q.Q4_K: gguf.LlamaFileType.MOSTLY_Q4_K_M}[most])
    out.add_quantization_version(2)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("qwen35")
    out.add_token_list(vocab)
    out.add_token_types(types)
    out.add_token_merges([" ".join(pair) for pair in merges])
    out.add_eos_token_id(vocab.index("<|im_end|>"))
    out.add_pad_token_id(vocab.index("<|endoftext|>"))
    out.add_bos_token_id(vocab.index("<|endoftext|>"))
    out.add_add_bos_token(False)
    out.add_chat_template(bpe.CHAT_TEMPLATE)
    out.add_vocab_size(s.vocab)
    out.add_block_count(s.layers + s.mtp)
    out.add_context_length(s.context)
    out.add_embedding_length(s.hidden)
    out.add_feed_forward_length(s.ffn)
    out.add_head_count(s.heads)
    out.add_head_count_kv(s.kv_heads)
    out.add_key_length(s.head_dim)
    out.add_value_length(s.head_dim)
    out.add_layer_norm_rms_eps(s.eps)
    out.add_rope_freq_base(s.rope_base)
    out.add_rope_dimension_count(s.rope_dim)
    out.add_rope_dimension_sections(list(s.rope_sections))
    out.add_ssm_conv_kernel(s.conv)
    out.add_ssm_state_size(s.gdn_k_dim)
    out.add_ssm_group_count(s.gdn_k_heads)
    out.add_ssm_time_step_rank(s.gdn_v_heads)
    out.add_ssm_inner_size(s.gdn_values)
    out.add_uint32(f"{arch}.full_attention_interval", s.interval)
    out.add_uint32(f"{arch}.nextn_predict_layers", s.mtp)
    out.add_array(f"{arch}.attention.recurrent_layers", [s.recurrent(i) for i in range(s.layers + s.mtp)])
    stored = {}
    for tensor, dims in s.tensors().items():
        value = w[tensor].detach().contiguous().numpy().astype(np.float32)
        assert value.shape == dims, (tensor, value.shape, dims)
        kind = kinds[tensor]
        if kind == Q.F32:
            out.add_tensor(tensor, value)
            stored[tensor] = torch.from_numpy(value.copy())
        else:
            data = quantize(value, kind)
            out.add_tensor(tensor, data, raw_dtype=kind)
            stored[tensor] = torch.from_numpy(gguf.quants.dequantize(data, kind).reshape(dims).astype(np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return stored, kinds


def read(path):
    """(shape, dequantised tensors, tensor types) of a qwen35 file."""
    file = gguf.GGUFReader(path)

    def key(name, default=None):
        field = file.get_field(f"qwen35.{name}")
        return default if field is None else field.contents()

    tensors = {t.name: torch.from_numpy(np.array(gguf.quants.dequantize(t.data, t.tensor_type), dtype=np.float32)
                                        .reshape(tuple(int(d) for d in reversed(t.shape)))) for t in file.tensors}
    types = {t.name: t.tensor_type for t in file.tensors}
    v_heads, mtp = key("ssm.time_step_rank"), key("nextn_predict_layers", 0)
    shape = qwen35.Shape(
        vocab=tensors["token_embd.weight"].shape[0], hidden=key("embedding_length"), ffn=key("feed_forward_length"),
        layers=key("block_count") - mtp, heads=key("attention.head_count"), kv_heads=key("attention.head_count_kv"),
        head_dim=key("attention.key_length"), rope_dim=key("rope.dimension_count"),
        rope_sections=tuple(key("rope.dimension_sections")), gdn_k_heads=key("ssm.group_count"), gdn_v_heads=v_heads,
        gdn_k_dim=key("ssm.state_size"), gdn_v_dim=key("ssm.inner_size") // v_heads, mtp=mtp,
        tied="output.weight" not in tensors, conv=key("ssm.conv_kernel"), interval=key("full_attention_interval", 4),
        rope_base=key("rope.freq_base"), eps=key("attention.layer_norm_rms_epsilon"), context=key("context_length"))
    return shape, tensors, types
