"""The attend command: where every head of a model looks, as a page to explore and as a map in the terminal."""

import base64
import math
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt_cli import artefact
from nmt_cli.console import say
from nmt_cli.corpus.cleaning import normalise
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.errors import MissingError, UsageError, printable
from nmt_cli.reporting.attention_maps import attention_scores
from nmt_cli.reporting.page import render
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import LoadedModel, load_model
from nmt_cli.translation.lines import translate_lines
from nmt_cli.translation.search import SearchSettings
from nmt_cli.translation.translate import choose_models

MOST_WEIGHTS = 600_000  # on a page: at 16 bits, base64, they keep it under 2 MB
ROLES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}
START, END = "‹start›", "‹end›"
POSITIONS = 64  # shown
SHADES = " ░▒▓█"
HEADER_LINES = 12


@dataclass(frozen=True)
class AttendOptions:
    """What to show first and where to write.

    Args:
        model: a model directory; None for $NMT_MODEL, else the newest under runs/.
        output: the page.
        png: a picture of all heads of one layer; needs matplotlib.
        role: encoder, decoder or cross.
        layer: from 1; None for the last.
        head: from 1; None for the one whose weights are most concentrated.
        translation: of the only text, looked at in place of the model's own.
    """

    model: Path | None = None
    output: Path = Path("attention.html")
    png: Path | None = None
    role: str = "encoder"
    layer: int | None = None
    head: int | None = None
    translation: str | None = None


@dataclass(frozen=True)
class Pair:
    """A sentence, its translation, the names of their tokens, and all scores by role (see `attention_scores`)."""

    text: str
    translation: str
    src: list[str]
    tgt: list[str]
    scores: dict[str, Tensor]

    def sides(self, role: str) -> tuple[list[str], list[str]]:
        """Return the names of a role's rows and columns."""
        rows = self.src if role == "encoder" else self.tgt
        return rows, [START, *self.tgt[:-1]] if role == "decoder" else self.src

    def weights(self, role: str, factor: float = 1.0) -> Tensor:
        """Return softmax(factor x scores), layers x heads x rows x columns."""
        return torch.softmax(factor * self.scores[role].double(), -1)


def attend(texts: Sequence[str], options: AttendOptions) -> int:
    """Write the page for one or more sentences, print a map of one head, and return the exit code.

    Raises:
        UsageError: there is no such role, layer or head, or a text is empty or too long.
        MissingError: there is no model, or no matplotlib for a PNG.
    """
    if options.role not in ROLES:
        raise UsageError(f"--role must be one of {', '.join(ROLES)}, not {options.role!r}")
    if options.translation is not None and len(texts) != 1:
        raise UsageError("--translation needs exactly one text")
    loaded = load_model(choose_models((options.model,) if options.model else ())[0])
    settings = loaded.recipe.model
    layer = options.layer or settings.num_layers
    for name, value, most in (("--layer", layer, settings.num_layers), ("--head", options.head, settings.num_heads)):
        if value and value > most:
            sizes = f"{settings.num_layers} layers of {settings.num_heads} heads"
            raise UsageError(f"{name} {value} is not there: this model has {sizes}. Give 1 to {most}")
    pairs = _pairs(loaded, texts, options.translation)
    heads = pairs[0].weights(options.role)[layer - 1]
    head = options.head or 1 + max(range(len(heads)), key=lambda i: sharpness(heads[i])[0])
    artefact.replace_file(options.output, _page(loaded, pairs, (options.role, layer, head)))
    say(f"page: {options.output}")
    if options.png:
        _png(options.png, pairs[0], options.role, layer)
        say(f"picture: {options.png}")
    width = shutil.get_terminal_size((100, 24)).columns
    for pair in pairs:
        title = f"{ROLES[options.role]}, layer {layer}, head {head}"
        weights = pair.weights(options.role)[layer - 1, head - 1]
        lines = terminal_map(*pair.sides(options.role), weights, colour=sys.stdout.isatty(), width=width)
        print("\n".join([title, *lines]))
    return 0


def _pairs(loaded: LoadedModel, texts: Sequence[str], translation: str | None) -> list[Pair]:
    """Translate the texts (unless told how) and compute all scores."""
    tokenizer, decoding, model = Tokenizer(loaded.tokenizer_file), loaded.recipe.decoding, loaded.model
    if translation is None:
        dtype = next(model.parameters()).dtype
        search = SearchSettings(decoding.beam, decoding.alpha, decoding.extra_length)
        answers = translate_lines([for_inference(model, dtype)], dtype, tokenizer, list(texts), search)
    else:
        answers = [translation]
    pairs, total, settings = [], 0, loaded.recipe.model
    for text, answer in zip(texts, answers, strict=True):
        src, tgt = ([*ids, EOS] for ids in tokenizer.encode([normalise(text), normalise(answer)]))
        if min(len(src), len(tgt)) < 2:
            raise UsageError("there is nothing to look at: the text or its translation is empty")
        total += settings.num_layers * settings.num_heads * (len(src) ** 2 + len(tgt) ** 2 + len(src) * len(tgt))
        if max(len(src), len(tgt)) > settings.max_length or total > MOST_WEIGHTS:
            sizes = f"{len(src)} and {len(tgt)} tokens"
            raise UsageError(f"{sizes} are too many for one page. Give fewer or shorter sentences")
        names = [[*map(_name, tokenizer.pieces(ids[:-1])), END] for ids in (src, tgt)]
        pairs.append(Pair(text, answer, *names, attention_scores(model, src, tgt)))
    return pairs


def _name(token: str) -> str:
    """Return how a token is shown: a dot where it continues a word."""
    if token.startswith("▁"):
        return token[1:] or "▁"
    return f"·{token}" if token[0].isalnum() else token


def sharpness(weights: Tensor) -> tuple[float, float, float]:
    """Return the means over all rows with a choice of: the largest weight, the entropy in bits, and 1 - sum of squares.

    The last is the trace of the softmax's Jacobian: what is left of a gradient that passes through it.
    """
    rows = weights.reshape(-1, weights.shape[-1])
    rows = rows[(rows > 0).sum(-1) > 1] if len(rows) > 1 else rows
    entropy = torch.special.entr(rows).sum(-1) / math.log(2)
    return float(rows.amax(-1).mean()), float(entropy.mean()), float((1 - rows.square().sum(-1)).mean())


def _page(loaded: LoadedModel, pairs: Sequence[Pair], shown: tuple[str, int, int]) -> bytes:
    role, layer, head = shown
    settings = loaded.recipe.model
    sentences = [
        {
            "text": printable(pair.text, 2000),
            "translation": printable(pair.translation, 2000),
            "src": [printable(name) for name in pair.src],
            "says": [printable(name) for name in pair.tgt],
            "said": [printable(name) for name in pair.sides("decoder")[1]],
            "weights": {role: _packed(pair.weights(role) * 65535, torch.uint16) for role in ROLES},
        }
        for pair in pairs
    ]
    data: dict[str, Any] = {"sentences": sentences, "role": role, "layer": layer, "head": head}
    data |= {"layers": settings.num_layers, "heads": settings.num_heads, "d_k": settings.d_k}
    values = {
        "title": f"Attention: {printable(pairs[0].text, 60)}",
        "model": loaded.directory,
        "data": {**data, "positions": list(_positions(loaded.model))},
        "roles": ROLES,
        "scale": list(_scale(pairs, settings.d_k)),
        "root": math.sqrt(settings.d_k),
    }
    return render("attend.html", values, "attend.js")


def _packed(values: Tensor, dtype: torch.dtype) -> str:
    """Return rounded values as base64 of little-endian integers."""
    return base64.b64encode(values.round().to(dtype).numpy().tobytes()).decode()


def _scale(pairs: Sequence[Pair], d_k: int) -> Iterator[list[str]]:
    """Tell for each role what dividing by sqrt(d_k) does to this model's softmax."""
    for role, title in ROLES.items():
        for name, factor in (("with", 1.0), ("without", math.sqrt(d_k))):
            layers = [sharpness(layer) for pair in pairs for layer in pair.weights(role, factor)]
            means = [sum(figures) / len(layers) for figures in zip(*layers, strict=True)]
            yield [title if name == "with" else "", name, *(f"{mean:.3f}" for mean in means)]


def _positions(model: Transformer) -> Iterator[dict[str, Any]]:
    """Return the first positional encodings, as whole numbers from -127 to 127 and what 127 stands for."""
    kind = model.settings.positions
    for side in ("src", "tgt") if kind == "learned" else ("src",):
        values = model.positions(side)[:POSITIONS].detach().float().cpu()
        largest = float(values.abs().max()) or 1.0
        title = f"{kind} positions{f' of the {side} side' * (kind == 'learned')}"
        size = {"rows": len(values), "columns": values.shape[1]}
        yield {"title": title, **size, "largest": largest, "values": _packed(values / largest * 127, torch.int8)}


def _fit(text: str, width: int) -> str:
    """Return text cut or filled to so many columns of a terminal."""
    fitted, used = "", 0
    for character in printable(text):
        size = 0 if unicodedata.combining(character) else 1 + (unicodedata.east_asian_width(character) in "WF")
        if used + size > width:
            break
        fitted, used = fitted + character, used + size
    return fitted + " " * (width - used)


def _header(names: Sequence[str], cell: int) -> list[str]:
    """Return names written downwards, each above its column of `cell` characters."""
    shown = ["".join(c for c in printable(name, HEADER_LINES) if not unicodedata.combining(c)) for name in names]
    tall = max(map(len, shown))
    return ["".join(_fit(name.rjust(tall)[i], cell) for name in shown).rstrip() for i in range(tall)]


def terminal_map(
    rows: Sequence[str], columns: Sequence[str], weights: Tensor, *, colour: bool, width: int = 100
) -> list[str]:
    """Return the lines of a map of one head, the strongest of each row named.

    A token is two columns wide, or one where that does not fit; where that does not fit either, only names are shown.
    """
    left = min(14, max(map(len, rows)) + 1)
    room = width - left - len(" →  0.00") - max(len(printable(name)) for name in columns)
    cell = min(2, room // len(columns)) if room > 0 else 0
    lines = [" " * left + line for line in _header(columns, cell)] if cell else []
    for name, row in zip(rows, weights.tolist(), strict=True):
        best = row.index(max(row))
        cells = [(SHADES[min(4, math.ceil(w * 4 - 0.2))] if w else "·").ljust(2)[:cell] for w in row]
        cells = [cell_text.replace(" ", cell_text[0]) if cell_text[:1] != "·" else cell_text for cell_text in cells]
        if colour:
            cells[best] = f"\x1b[1;36m{cells[best]}\x1b[0m"
        lines.append(f"{_fit(name, left)}{''.join(cells)} → {printable(columns[best])} {row[best]:.2f}")
    return lines


def _png(path: Path, pair: Pair, role: str, layer: int) -> None:
    """Draw all heads of a layer with matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        advice = "pip install 'nmt-cli[plot]'. The page is written without it"
        raise MissingError(f"a PNG needs matplotlib: {advice}") from None
    weights = pair.weights(role)[layer - 1]
    across = min(4, len(weights))
    down = -(-len(weights) // across)
    rows, columns = ([printable(name).replace("$", r"\$") for name in names] for names in pair.sides(role))
    figure = Figure(figsize=(1 + 0.22 * len(columns) * across, 1 + 0.25 * len(rows) * down), layout="constrained")
    for head, axes in enumerate(figure.subplots(down, across, squeeze=False).flat):
        if head >= len(weights):
            axes.set_axis_off()
            continue
        axes.imshow(weights[head], cmap="Blues", vmin=0, vmax=1)
        axes.set_title(f"head {head + 1}")
        axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize=7)
        axes.set_yticks(range(len(rows)), rows, fontsize=7)
    figure.suptitle(f"{ROLES[role]}, layer {layer}")
    figure.savefig(path, format="png", dpi=120)
