"""The sacreBLEU tokenizer of each language code."""

import re

# sacreBLEU's tokenizers for languages without spaces between words. ja-mecab is not used: it needs another package.
TOKENIZERS = {"zh": "zh", "ja": "char", "th": "char", "my": "char", "km": "char", "lo": "char"}


def tokenizer_of(language: str) -> str:
    return TOKENIZERS.get(re.split("[-_]", language.lower())[0], "13a")
