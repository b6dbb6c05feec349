"""The tokenizer of Argos packages that contain `bpe.model`: Moses tokenization, then subword-nmt's byte-pair encoding.

It encodes and decodes as argostranslate does (argostranslate/tokenizer.py). A token ends with `@@` if the next token
continues its word. The tokenizer file is JSON with the language, subword-nmt's codes, the tokens in the order of their
ids, and the hidden tokens, which decode to nothing.
"""

import functools
import heapq
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, UsageError

PAD, UNK, EOS = SPECIAL = ("<pad>", "<unk>", "</s>")  # the tokens 0, 1 and 2
CONTINUED = "@@"
SPACE = "\u2581"
END = "</w>"  # marks the end of a word in subword-nmt's codes
VERSIONS = ("0.1", "0.2")  # supported versions of subword-nmt's codes; in 0.2, END is part of a word's last symbol
MAX_MERGES = 200_000  # typically, there are 10,000 to 100,000
CACHED_WORDS, LONGEST_CACHED = 1 << 13, 40  # maximum number of cached words, and of characters in a cached word
LONGEST = 500  # characters; longer words are split, because sacremoses takes quadratic time for some of them
MOST_FIRST = 2  # a source may begin with at most two tokens such as >>deu<<: its target language and a tag
_FIRST_TOKEN = re.compile(r"(>>[^<> ]+<<)(?: |$)")


def is_moses_file(data: bytes) -> bool:
    """Return whether a tokenizer file has this format. Files of SentencePiece never begin with a brace."""
    return data.startswith(b"{")


def to_bytes(language: str, codes: str, tokens: Sequence[str], hidden: Sequence[str] = ()) -> bytes:
    """Return the content of a tokenizer file."""
    values = {"language": language, "codes": codes, "tokens": [*tokens], "hidden": [*hidden]}
    return json.dumps(values, ensure_ascii=False).encode()


def read_file(file: Path) -> dict[str, Any]:
    """Return the values of a tokenizer file. Raise DataError if they do not have the right types."""
    values = artefact.read_json(file)
    texts: list[Any] = [values.get("language"), values.get("codes")]
    for name in ("tokens", "hidden"):
        if not isinstance(values.get(name), list):
            raise DataError(f"{file} is damaged: its {name} must be a list")
        texts += values[name]
    try:
        "".join(texts).encode()
    except (TypeError, UnicodeError):
        raise DataError(f"{file} is damaged: its values must be text") from None
    return values


class Codes:
    """The merges that subword-nmt learned, in the order in which it learned them."""

    def __init__(self, text: str, file: Path) -> None:
        """Parse codes. Raise DataError if they are damaged or unsupported; `file` is used only in its message."""
        lines = text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")
        header = lines[0].startswith("#version:")
        version = lines[0].removeprefix("#version:").strip() if header else VERSIONS[0]
        if version not in VERSIONS:
            raise DataError(f"{file} has codes of version {version[:20]!r}, but nmt supports {' and '.join(VERSIONS)}")
        self._separate_end = version == VERSIONS[0]
        if len(lines) > MAX_MERGES:
            raise DataError(f"{file} has {len(lines):,} merges, but nmt supports at most {MAX_MERGES:,}")
        self._ranks: dict[tuple[str, str], int] = {}
        for number, line in enumerate(lines[header:] if text else [], 1 + header):
            left, space, right = line.strip(" ").partition(" ")
            if not space or " " in right:
                raise DataError(f"{file} is damaged: line {number:,} of its codes does not have two symbols")
            self._ranks.setdefault((left, right), number)

    def split(self, word: str) -> list[str]:
        """Split a word into subwords. Takes O(n log n) time for a word of n characters.

        As in subword-nmt, each step merges all occurrences of a pair, from left to right, and only then looks for pairs
        that these merges formed.
        """
        symbols = [*word, END] if self._separate_end else [*word[:-1], word[-1] + END]
        following, preceding = [*range(1, len(symbols) + 1)], [*range(-1, len(symbols) - 1)]
        symbols.append("")  # sentinel: empty symbols are never merged
        heap = list[tuple[int, int]]()

        def rank(left: int) -> int | None:
            return self._ranks.get((symbols[left], symbols[following[left]])) if symbols[left] else None

        def push(left: int) -> None:
            if left >= 0 and (found := rank(left)) is not None:
                heapq.heappush(heap, (found, left))

        for left in range(len(following)):
            push(left)
        while heap:
            lowest, merged = heap[0][0], list[int]()  # the rank of the pair to merge, and where it was merged
            while heap and heap[0][0] == lowest:
                _, left = heapq.heappop(heap)
                if rank(left) == lowest:
                    right = following[left]
                    symbols[left], symbols[right] = symbols[left] + symbols[right], ""
                    following[left] = following[right]
                    if following[left] < len(preceding):
                        preceding[following[left]] = left
                    merged.append(left)
            for left in merged:
                push(preceding[left])
                push(left)
        parts = [symbol for symbol in symbols if symbol]
        parts[-1] = parts[-1].replace(END, "")
        return [part for part in parts if part]


class MosesBpe:
    """A loaded tokenizer, with the methods of SentencePieceProcessor that `Tokenizer` calls."""

    def __init__(self, file: Path) -> None:
        values = read_file(file)
        self._codes = Codes(values["codes"], file)
        self._names: list[str] = values["tokens"]
        self._ids = {name: number for number, name in enumerate(self._names)}
        if (*self._names[:3],) != SPECIAL or len(self._ids) < len(self._names):
            raise DataError(f"{file} is damaged: its tokens must be distinct and begin with {' '.join(SPECIAL)}")
        self._hidden = {self._ids[name] for name in (PAD, EOS, *values["hidden"]) if name in self._ids}
        try:
            from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
        except ImportError:
            raise UsageError('bpe.model needs sacremoses. Install it: pip install "nmt-cli[moses]"') from None
        language = values["language"]
        self._normalizer = MosesPunctNormalizer(language)
        self._tokenizer = MosesTokenizer(language)
        self._detokenizer = MosesDetokenizer(language)
        # For each word that ends with a full stop, sacremoses builds a set of all letters, which takes a millisecond.
        # These replacements use one set for all words.
        alpha, lower = map(frozenset, (self._tokenizer.IsAlpha, self._tokenizer.IsLower))
        self._tokenizer.isanyalpha = lambda text: not alpha.isdisjoint(text)
        self._tokenizer.islower = lower.issuperset
        self._cached_parts = functools.lru_cache(CACHED_WORDS)(self._codes.split)
        self._text = functools.lru_cache(64)(self._detokenized)  # `decode` and `spell` are called for the same tokens

    def get_piece_size(self) -> int:
        return len(self._names)

    def id_to_piece(self, token: int) -> str:
        return self._names[token]

    def piece_to_id(self, name: str) -> int:
        return self._ids.get(name, self._ids[UNK])

    def encode(self, line: str) -> list[int]:
        """Return the ids of a normalized line, without EOS."""
        ids = list[int]()
        while len(ids) < MOST_FIRST and (found := _FIRST_TOKEN.match(line)) and found[1] in self._ids:
            ids.append(self._ids[found[1]])
            line = line[found.end() :]
        words = line.split(" ")
        if max(map(len, words)) > LONGEST:
            line = " ".join(word[i : i + LONGEST] for word in words for i in range(0, len(word), LONGEST))
        for word in self._tokenizer.tokenize(self._normalizer.normalize(line)):
            *parts, last = self._cached_parts(word) if len(word) <= LONGEST_CACHED else self._codes.split(word)
            ids += [self.piece_to_id(name) for name in (*(part + CONTINUED for part in parts), last)]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids. Unknown tokens become ⁇, as in SentencePiece."""
        return self._text(" ".join(self._shown(token) for token in ids if token not in self._hidden))

    def _detokenized(self, tokens: str) -> str:
        """Return the text of tokens that are joined with spaces."""
        words = tokens.replace(f"{CONTINUED} ", "").removesuffix(CONTINUED).split(" ")
        try:
            return str(self._detokenizer.detokenize(words))
        except TypeError:  # sacremoses fails on some Czech text with hyphens
            return " ".join(words)

    def _shown(self, token: int) -> str:
        return "\u2047" if self._names[token] == UNK else self._names[token]

    def spell(self, ids: Sequence[int]) -> list[str]:
        """Return, for each token, its part of the decoded text, with ▁ for a space before it.

        If detokenization changed anything but spaces, return the subword tokens instead, without @@, and with ▁ before
        each one that begins a Moses token.
        """
        text, at = f" {self.decode(ids)}", 0
        pieces = list[str]()
        for token in ids:
            if token in self._hidden:
                pieces.append(self._names[token] or SPACE)
                continue
            part = self._detokenizer.unescape_xml(self._shown(token).removesuffix(CONTINUED))
            end = at + text.startswith(" ", at) + len(part)
            if not part or text[end - len(part) : end] != part:
                return self._moses_tokens(ids)
            pieces.append(text[at:end].replace(" ", SPACE))
            at = end
        return pieces

    def _moses_tokens(self, ids: Sequence[int]) -> list[str]:
        names = [self._shown(token) for token in ids]
        begins = [True, *(not name.endswith(CONTINUED) for name in names)]
        spelled = zip(begins, names, strict=False)
        return [f"{SPACE * first}{name.removesuffix(CONTINUED)}" or name or SPACE for first, name in spelled]
