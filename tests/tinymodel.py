"""A tiny random Llama with a real tokenizer and a tool-aware chat template, so that whole loops run in seconds."""

from __future__ import annotations

from pathlib import Path

START, END = "<|im_start|>", "<|im_end|>"

# ChatML with Hermes-style tools: calls as <tool_call>{"name", "arguments"}</tool_call>, results inside a user turn.
CHAT_TEMPLATE = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- '# Tools\n<tools>' }}
    {%- for tool in tools %}{{- '\n' + tool | tojson }}{%- endfor %}
    {{- '\n</tools>\nAnswer with <tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or message.role == 'system' and not loop.first %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- set function = call.function or call %}
            {{- '<tool_call>\n{"name": "' + function.name + '", "arguments": ' }}
            {{- function.arguments if function.arguments is string else function.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
""".lstrip()

CORPUS = (
    "You are a careful assistant with a calculator tool. Use it, then answer with ### and the number.",
    'What is 12 + 34? <tool_call>\n{"name": "calculate", "arguments": {"expression": "12 + 34"}}\n</tool_call>',
    "<tool_response>\n46\n</tool_response> The answer is 46. ### 46",
    '# Tools\n<tools>\n{"type": "function", "function": {"name": "calculate", "description": "Evaluates an expression.", '
    '"parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}}}\n</tools>',
    "system\nuser\nassistant\n0 1 2 3 4 5 6 7 8 9 10 20 30 40 50 60 70 80 90 100",
)


def make_tiny_model(directory: Path | str, *, seed: int = 0, heads: int = 4, kv_heads: int = 2) -> Path:
    """Write a model directory as ``save_pretrained`` would (bf16 safetensors, tied embeddings); the same seed gives the same weights."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(directory)

    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=4096, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(directory)
    return directory


def make_tokenizer():
    """A byte-level BPE trained on ``CORPUS``: any text round-trips, the two ChatML marks are special, ``<tool_call>`` is text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<|endoftext|>", START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token="<|endoftext|>",
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
    )
