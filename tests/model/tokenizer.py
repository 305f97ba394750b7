"""The demo model's byte-level BPE: the qwen35 split and NFC, vocabulary learned from the demo trace, ChatML tokens last."""

import json

import jinja2
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")

# Same order as the real vocabulary's; token_type 3 (control) for <|...|>, 4 (user defined) otherwise.
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
            "<|video_pad|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]

CHAT_TEMPLATE = (
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}{{ '<think>\\n\\n</think>\\n\\n' }}"
    "{%- else -%}{{ '<think>\\n' }}{%- endif -%}{%- endif -%}"
)


def render(messages):
    """The prompt text of a request, as the daemon renders it (enable_thinking=false)."""
    template = jinja2.Environment().from_string(CHAT_TEMPLATE)
    return template.render(messages=messages, add_generation_prompt=True, enable_thinking=False)


def _split(tokenizer):
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    return tokenizer


def assemble(vocab, merges):
    """A runnable tokenizer from tokens (list, specials last) and merges (list of pairs)."""
    n = len(vocab) - len(SPECIALS)
    tokenizer = _split(Tokenizer(models.BPE({token: i for i, token in enumerate(vocab[:n])}, merges)))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(vocab[n:])
    return tokenizer


def learn(texts, size):
    """(vocab, merges, token types): at most `size` tokens, padded to exactly `size` with unused ones before the specials."""
    tokenizer = _split(Tokenizer(models.BPE()))
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size - len(SPECIALS), show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    model = json.loads(tokenizer.to_str())["model"]
    vocab = sorted(model["vocab"], key=model["vocab"].get)
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    types = [1] * len(vocab)
    while len(vocab) < size - len(SPECIALS):
        vocab.append(f"[PAD{len(vocab)}]")
        types.append(5)
    return vocab + SPECIALS, merges, types + [3 if s.startswith("<|") else 4 for s in SPECIALS]
