"""The README.md of an exported model."""

from pathlib import Path
from typing import Any

from nmt_cli import __version__
from nmt_cli.recipe import Recipe

_USE = {
    "hf": """from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
tokenizer, model = (kind.from_pretrained("{out}") for kind in (AutoTokenizer, AutoModelForSeq2SeqLM))
batch = tokenizer(["{line}"], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))""",
    "ctranslate2": """import ctranslate2, sentencepiece
translator = ctranslate2.Translator("{out}")
tokenizer = sentencepiece.SentencePieceProcessor(model_file="{out}/tokenizer.model")
batch = [tokenizer.encode("{line}", out_type=str) + ["</s>"]]
options = {{"beam_size": {beam}, "length_penalty": {penalty}, "max_decoding_length": {limit}, "min_decoding_length": 0}}
found = translator.translate_batch(batch, **options)
print(tokenizer.decode(found[0].hypotheses[0]))""",
}


def card(recipe: Recipe, target: str, out: Path, line: str, facts: dict[str, Any]) -> str:
    """Return the model card.

    Args:
        recipe: the model was trained by.
        target: "hf" or "ctranslate2".
        out: where the export will lie.
        line: an example to translate.
        facts: "penalty" and "length" (where the two length penalties agree), "proof" (sentences about the
            comparison), "limit" (longest output), "scores" (sentences about quality), "parameters".
    """
    model, corpus, decoding = recipe.model, recipe.corpus, recipe.decoding
    use = _USE[target].format(
        out=out.as_posix(),
        line=line.replace('"', "'"),
        beam=decoding.beam,
        penalty=facts["penalty"],
        limit=facts["limit"],
    )
    shape = f"{model.num_layers} + {model.num_layers} layers, d_model {model.d_model}, d_ff {model.d_ff}"
    return f"""---
language:
- {corpus.src}
- {corpus.tgt}
library_name: {"transformers" if target == "hf" else "ctranslate2"}
pipeline_tag: translation
---

# {recipe.name}: {corpus.src} to {corpus.tgt}

A Transformer as in "Attention Is All You Need" ({shape}, {model.num_heads} heads, {model.norm}-norm,
{facts["parameters"]:,} parameters), trained with nmt-cli {__version__} on {corpus.name}.
All knobs are in `recipe.yaml`.

```python
{use}
```

## Scores

{facts["scores"]}

## Proof

{facts["proof"]}

## Limits

- It knows what {corpus.name} holds, translates one sentence at a time, and makes mistakes that read well.
- `nmt translate` brings text into Unicode form NFC and makes every kind of white space one space; do so before.
- `nmt translate` divides log-probabilities by ((5 + length) / 6) ^ {decoding.alpha:g}, transformers and CTranslate2
  by length ^ {facts["penalty"]}, which is the same trade at {facts["length"]} pieces: some beam outputs differ.
- Its output ends at source length + {decoding.extra_length} pieces; transformers and CTranslate2 know only one limit
  for all sentences, here {facts["limit"]}.
- MarianTokenizer changes punctuation if sacremoses is installed, and takes `>>xx<<` at the start for a language.
"""
