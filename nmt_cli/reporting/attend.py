"""Implementation of `nmt attend`: show all attention weights on an HTML page, and one head in the terminal."""

import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.cells import cell_len, set_cell_size
from torch import Tensor

from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.reporting.page import render
from nmt_cli.storage import artefact
from nmt_cli.system.console import counted, say
from nmt_cli.system.errors import UsageError, printable
from nmt_cli.transformer.attention_scores import attention_scores
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import LoadedModel, load_model
from nmt_cli.translation.translate import choose_models
from nmt_cli.translation.translator import Translator

MOST_WEIGHTS = 600_000  # maximum weights per page, so that a page takes about 2 MB
ROLES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}
SHADES = " ░▒▓█"


def attend(
    texts: Sequence[str],
    model: Path | None,
    output: Path,
    role: str = "encoder",
    layer: int | None = None,
    head: int | None = None,
    translation: str | None = None,
) -> int:
    """Write one page for all texts, and print a map of one head for each text.

    The map, and the page when it opens, show the attention `role` (a key of ROLES) in `layer` and `head`, both counted
    from 1. The defaults are the last layer, and the head of this layer with the most concentrated weights for the first
    text. Without `translation`, the model translates the texts.
    """
    if translation is not None and len(texts) != 1:
        raise UsageError("--translation needs exactly one text")
    loaded = load_model(choose_models((model,) if model else ())[0])
    settings = loaded.recipe.model
    if settings.decoder_cell == "ssru":
        raise UsageError(f"{loaded.directory} has no decoder self-attention to show (model.decoder_cell is ssru)")
    encoder_layers, decoder_layers = settings.depths
    layers = {"encoder": encoder_layers, "decoder": decoder_layers, "cross": decoder_layers}
    layer = layer or layers[role]
    if layer > layers[role] or (head or 1) > settings.num_heads:
        size = f"{counted(layers[role], 'layer')}, with {counted(settings.num_heads, 'head')} per layer"
        raise UsageError(f"--layer or --head is too large: {ROLES[role]} has {size}")
    sentences, weights = _sentences(loaded, texts, translation)
    head = head or 1 + int(weights[0][role][layer - 1].amax(-1).mean(-1).argmax())
    data = {
        "sentences": sentences,
        "positions": _positions(loaded.model),
        "layers": layers,
        "heads": settings.num_heads,
        "d_k": settings.d_k,
        "role": role,
        "layer": layer,
        "head": head,
    }
    values = {"title": f"Attention: {texts[0][:60]}", "model": loaded.directory, "roles": ROLES, "data": data}
    artefact.replace_file(output, render("attend.html", values, "attend.js"))
    say(f"page: {output}")
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    width = shutil.get_terminal_size((100, 24)).columns
    for sentence, heads in zip(sentences, weights, strict=True):
        rows, columns = sentence["names"][role]
        lines = terminal_map(rows, columns, heads[role][layer - 1, head - 1], width)
        text = "\n".join([f"{ROLES[role]}, layer {layer}, head {head}", *lines])
        print(text.encode(encoding, "replace").decode(encoding))  # so that an ASCII terminal shows at least the numbers
    return 0


def _sentences(
    loaded: LoadedModel, texts: Sequence[str], translation: str | None
) -> tuple[list[dict[str, Any]], list[dict[str, Tensor]]]:
    """Return two lists: each text's data for the page, and its weights by role (layers x heads x rows x columns)."""
    tokenizer, model, settings = Tokenizer(loaded.tokenizer_file), loaded.model, loaded.recipe.model
    translator = Translator.of(model, tokenizer, loaded.recipe, next(model.parameters()).dtype)
    texts = [translator.with_target(text) for text in texts]
    answers = [translation or ""]
    if translation is None:
        found = translator.translate(texts, split=False, copy_wordless=False, case="off", spelling="off")
        answers = [each.text for each in found]
    (encoder_layers, decoder_layers), total = settings.depths, 0
    sentences, all_weights = [], []
    for text, answer in zip(texts, answers, strict=True):
        src, tgt = tokenizer.encode_pair(text, answer)
        if min(len(src), len(tgt)) < 2:
            raise UsageError("the text or its translation is empty, so there is no attention to show")
        total += settings.num_heads * encoder_layers * len(src) ** 2
        total += settings.num_heads * decoder_layers * len(tgt) * (len(src) + len(tgt))
        if max(len(src), len(tgt)) > settings.max_length or total > MOST_WEIGHTS:
            raise UsageError(f"{text[:60]!r} has too many tokens for one page. Give fewer or shorter sentences")
        both = (tokenizer, src), (tokenizer.target, tgt)
        source_names, target_names = ([*map(_name, side.tokens(ids[:-1])), "‹end›"] for side, ids in both)
        names = {
            "encoder": (source_names, source_names),
            "decoder": (target_names, ["‹start›", *target_names[:-1]]),
            "cross": (target_names, source_names),
        }
        weights = {role: torch.softmax(scores, -1) for role, scores in attention_scores(model, src, tgt).items()}
        integers = {role: (w * 10_000).round().int().tolist() for role, w in weights.items()}
        sides = {"text": printable(text, 2000), "translation": printable(answer, 2000)}
        sentences.append({**sides, "names": names, "weights": integers})
        all_weights.append(weights)
    return sentences, all_weights


def _name(token: str) -> str:
    """Return a token's label, in which a middle dot marks the continuation of a word."""
    name = token.removeprefix("▁") or "▁"
    return printable(f"·{name}" if name == token and name[0].isalnum() else name)


def _positions(model: Transformer) -> list[dict[str, Any]]:
    """Return the encodings of the first 64 positions: one entry, or one per side if they are learned.

    The `values` of an entry are multiples of `largest` / 127.
    """
    shown = []
    kind = model.settings.positions
    for side in ("src", "tgt") if kind == "learned" else ("src",):
        values = model.positions(side)[:64].detach()
        largest = float(values.abs().max()) or 1.0
        whole = (values / largest * 127).round().int().tolist()
        shown.append({"title": f"{kind} positions, {side}", "largest": largest, "values": whole})
    return shown


def terminal_map(rows: Sequence[str], columns: Sequence[str], weights: Tensor, width: int) -> list[str]:
    """Return the lines of a map of one head. Each weight takes 2, 1 or 0 characters, so that lines fit `width`."""
    left = min(14, max(map(cell_len, rows)) + 1)
    room = width - left - len(" →  0.00") - max(map(cell_len, columns))
    cell = max(0, min(2, room // len(columns)))
    height = min(12, max(map(len, columns)))
    vertical = [printable(name, height).rjust(height) for name in columns]
    header = ["".join(set_cell_size(name[i], cell) for name in vertical) for i in range(height) if cell]
    lines = [(" " * left + line).rstrip() for line in header]
    for name, row in zip(rows, weights.tolist(), strict=True):
        best = row.index(max(row))
        cells = [SHADES[min(4, math.ceil(w * 4 - 0.2))] * cell if w else "· "[:cell] for w in row]
        lines.append(f"{set_cell_size(name, left)}{''.join(cells)} → {columns[best]} {row[best]:.2f}")
    return lines
