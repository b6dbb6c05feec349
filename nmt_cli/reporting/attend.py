"""The attend command: where every head of a model looks, as a page to explore and as a map in the terminal."""

import base64
import math
import shutil
import struct
import sys
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli import artefact
from nmt_cli.console import say
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.errors import MissingError, UsageError, printable
from nmt_cli.reporting.attention_maps import ROLES, Floats, attention_scores, flow, sharpness, softmax
from nmt_cli.reporting.page import escape, page, section, table
from nmt_cli.reporting.svg import heat_map
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import LoadedModel, load_model
from nmt_cli.translation.lines import encode, translate_lines
from nmt_cli.translation.search import SearchSettings
from nmt_cli.translation.translate import choose_models

MOST_WEIGHTS = 600_000  # on a page: at 16 bits, base64, they keep it under 2 MB
ROLE_NAMES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}
PRONOUNS = " it its they them their he him she her er ihn ihm sie es ihnen il elle ils elles "
START, END = "‹start›", "‹end›"
POSITIONS = 64  # shown
RED, BLUE = (178, 24, 43), (33, 102, 172)
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
class _Pair:
    """A sentence, its translation, the names of their pieces, and all scores by role (see attention_scores)."""

    text: str
    translation: str
    src: list[str]
    tgt: list[str]
    scores: dict[str, Floats]

    def sides(self, role: str) -> tuple[list[str], list[str]]:
        """Return the names of a role's rows and columns."""
        rows = self.src if role == "encoder" else self.tgt
        return rows, [START, *self.tgt[:-1]] if role == "decoder" else self.src

    def pronoun(self, role: str) -> int | None:
        """Return the row of the first pronoun, if there is one."""
        rows = self.sides(role)[0]
        whole = (
            i for i in range(len(rows) - 1) if f" {rows[i].lower()} " in PRONOUNS and not rows[i + 1].startswith("·")
        )
        return next(whole, None)


def attend(texts: Sequence[str], options: AttendOptions) -> int:
    """Write the page for one or more sentences, print a map of one head, and return the exit code.

    Raises:
        UsageError: there is no such role, layer or head, or a text is empty or too long.
        MissingError: there is no model, or no matplotlib for a PNG.
    """
    if options.role not in ROLES:
        raise UsageError(f"--role must be one of {', '.join(ROLES)}, not {printable(options.role, 40)!r}")
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
    first = softmax(pairs[0].scores[options.role][layer - 1])
    head = options.head or 1 + int(np.argmax([sharpness(weights)[0] for weights in first]))
    artefact.replace_file(options.output, _page(loaded, pairs, (options.role, layer, head)))
    say(f"page: {options.output}")
    if options.png:
        _png(options.png, pairs[0], options.role, layer)
        say(f"picture: {options.png}")
    for pair in pairs:
        title = f"{ROLE_NAMES[options.role]}, layer {layer}, head {head}"
        width = shutil.get_terminal_size((100, 24)).columns
        lines = terminal_map(title, pair, options.role, layer, head, colour=sys.stdout.isatty(), width=width)
        print("\n".join(lines))
    return 0


def _name(piece: str) -> str:
    """Return how a piece is shown: a dot where it goes on with a word."""
    if piece.startswith("▁"):
        return piece[1:] or "▁"
    return f"·{piece}" if piece[0].isalnum() else piece


def _pairs(loaded: LoadedModel, texts: Sequence[str], translation: str | None) -> list[_Pair]:
    """Translate the texts (unless told how) and compute all scores."""
    tokenizer, decoding = Tokenizer(loaded.tokenizer_file), loaded.recipe.decoding
    model, dtype = loaded.model, next(loaded.model.parameters()).dtype
    if translation is None:
        search = SearchSettings(decoding.beam, decoding.alpha, decoding.extra_length)
        answers = translate_lines([for_inference(model, dtype)], dtype, tokenizer, list(texts), search)
    else:
        answers = [translation]
    pairs, total, settings = [], 0, loaded.recipe.model
    for text, answer in zip(texts, answers, strict=True):
        src, tgt = encode(tokenizer, [text, answer])
        if not src or not tgt:
            raise UsageError("there is nothing to look at: the text or its translation is empty")
        total += settings.num_layers * settings.num_heads * (len(src) ** 2 + len(tgt) ** 2 + len(src) * len(tgt))
        if max(len(src), len(tgt)) > settings.max_length or total > MOST_WEIGHTS:
            raise UsageError(
                f"{len(src)} and {len(tgt)} pieces are too many for one page. Give fewer or shorter sentences"
            )
        names = [[*map(_name, tokenizer.pieces(ids[:-1])), END] for ids in (src, tgt)]
        pairs.append(_Pair(text, answer, names[0], names[1], attention_scores(model, src, tgt)))
    return pairs


def _page(loaded: LoadedModel, pairs: Sequence[_Pair], shown: tuple[str, int, int]) -> bytes:
    role, layer, head = shown
    settings = loaded.recipe.model
    sentences = [
        {
            "text": printable(pair.text, 2000),
            "translation": printable(pair.translation, 2000),
            "src": [printable(name) for name in pair.src],
            "says": [printable(name) for name in pair.tgt],
            "said": [printable(name) for name in pair.sides("decoder")[1]],
            "weights": {role: _packed(softmax(scores)) for role, scores in pair.scores.items()},
            "focus": {role: pair.pronoun(role) or 0 for role in ROLES},
        }
        for pair in pairs
    ]
    data: dict[str, Any] = {"sentences": sentences, "role": role, "layer": layer, "head": head}
    data |= {"layers": settings.num_layers, "heads": settings.num_heads, "d_k": settings.d_k}
    picks = {
        "sentence": [(str(i), printable(pair.text, 60)) for i, pair in enumerate(pairs)],
        "role": list(ROLE_NAMES.items()),
        "layer": [(str(n), f"{n} of {settings.num_layers}") for n in range(1, settings.num_layers + 1)],
    }
    now = {"sentence": "0", "role": role, "layer": str(layer)}
    controls = "".join(
        f'<label>{name} <select id="{name}">'
        + "".join(f'<option value="{v}"{" selected" * (v == now[name])}>{escape(text)}</option>' for v, text in options)
        + "</select></label>"
        for name, options in picks.items()
    )
    body = Path(__file__).with_name("attend.html").read_text()
    for mark, html in (("CONTROLS", controls), ("MODEL", escape(loaded.directory)), ("ROOT", f"√{settings.d_k}")):
        body = body.replace(f"<!--{mark}-->", html)
    about = (
        "<p>Each row is one head: layer.head. Where attention is followed down through the encoder, half of a layer's "
        "output is taken to be from the place itself, half from where its heads look on average (rollout).</p>"
    )
    paths = (f'<div class="charts" data-sentence="{i}">{_path(pair)}</div>' for i, pair in enumerate(pairs))
    body += section("From a pronoun to its antecedent", about, *paths)
    body += _scale(pairs, settings.d_k) + _positions(loaded.model)
    return page(
        f"Attention: {printable(pairs[0].text, 60)}", body, Path(__file__).with_name("attend.js").read_text(), data
    )


def _packed(weights: Floats) -> str:
    return base64.b64encode(np.rint(weights * 65535).astype("<u2").tobytes()).decode()


def _path(pair: _Pair) -> str:
    """Draw the row of a pronoun in every head, and how the encoder's layers mix what it looks at."""
    parts = []
    for role in ROLES:
        place = pair.pronoun(role)
        if place is None:
            continue
        rows, columns = pair.sides(role)
        columns = columns[: place + 1] if role == "decoder" else columns
        weights = softmax(pair.scores[role])[:, :, place, : len(columns)]
        names = [f"{layer + 1}.{head + 1}" for layer in range(weights.shape[0]) for head in range(weights.shape[1])]
        look = f"{'from' if role == 'encoder' else 'before saying'} “{rows[place]}”"
        values = weights.reshape(len(names), -1)
        parts.append(heat_map(f"{ROLE_NAMES[role]} {look}: layer.head by piece", names, columns, values))
        if role != "decoder":
            start = np.eye(len(columns))[place] if role == "encoder" else weights[-1].mean(0)
            levels = flow(softmax(pair.scores["encoder"]), start)
            names = [f"layer {n}" for n in range(len(levels) - 1, 0, -1)] + ["embeddings"]
            parts.append(heat_map(f"{look}, followed down through the encoder's layers", names, columns, levels))
    return "".join(parts) or "<p>This sentence has no pronoun that is known here.</p>"


def _scale(pairs: Sequence[_Pair], d_k: int) -> str:
    """Tell what dividing by sqrt(d_k) does to this model's softmax."""
    rows = []
    for role in ROLES:
        for name, factor in (("with", 1.0), ("without", math.sqrt(d_k))):
            found = np.array([sharpness(softmax(s, factor)) for pair in pairs for s in pair.scores[role]]).mean(0)
            rows.append([ROLE_NAMES[role] if name == "with" else "", name, *(f"{value:.3f}" for value in found)])
    header = ("", "1/√d_k", "largest weight", "entropy (bits)", "gradient left (1 − Σp²)")
    about = (
        f"<p>The paper divides q·k by √d_k = √{d_k} = {math.sqrt(d_k):.1f} so that the softmax does not saturate. "
        "Here: means over all rows of these sentences, for this model as it is and with the division left out. Where "
        "the largest weight is near 1, almost no gradient gets through. (Tick “without” above to see the heads.)</p>"
    )
    return section("What the scale does", about, table(header, rows, "llrrr"))


def _positions(model: Transformer) -> str:
    """Draw the positional encodings as an image, one pixel per position and dimension."""
    sides = ("src", "tgt") if model.settings.positions == "learned" else ("src",)
    parts = []
    for side in sides:
        values = model.positions(side)[:POSITIONS].detach().float().numpy()
        scale = float(np.abs(values).max()) or 1.0
        share = np.abs(values)[..., None] / scale
        pixels = 255 - share * (255 - np.where(values[..., None] > 0, RED, BLUE))
        image = base64.b64encode(png_bytes(pixels.astype(np.uint8))).decode()
        title = f"{model.settings.positions} positions{f' of the {side} side' if len(sides) > 1 else ''}"
        size = f"down: positions 0 to {len(values) - 1}; across: dimensions 0 to {values.shape[1] - 1}"
        parts.append(
            f"<figure><figcaption>{title}; {size}; red +{scale:.2g}, blue −{scale:.2g}</figcaption>"
            f'<img class="pixels" alt="{title}, {size}" src="data:image/png;base64,{image}"></figure>'
        )
    return section("Positional encodings", *parts)


def png_bytes(pixels: np.typing.NDArray[np.uint8]) -> bytes:
    """Return height x width x 3 bytes as a PNG file."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    ]
    body = b"".join(struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


def _fit(text: str, width: int) -> str:
    """Return text cut or filled to so many columns of a terminal."""
    kept, used = "", 0
    for character in printable(text):
        size = 0 if unicodedata.combining(character) else 1 + (unicodedata.east_asian_width(character) in "WF")
        if used + size > width:
            break
        kept, used = kept + character, used + size
    return kept + " " * (width - used)


def _header(names: Sequence[str], cell: int) -> list[str]:
    """Return names written downwards, each above its column of `cell` characters."""
    shown = ["".join(c for c in printable(name, HEADER_LINES) if not unicodedata.combining(c)) for name in names]
    tall = max(map(len, shown))
    return ["".join(_fit(name[i], cell) for name in (name.rjust(tall) for name in shown)) for i in range(tall)]


def terminal_map(
    title: str, pair: _Pair, role: str, layer: int, head: int, *, colour: bool, width: int = 100
) -> list[str]:
    """Return the lines of a map of one head, the strongest of each row named.

    A piece is two columns wide, or one where that does not fit; where that does not fit either, only names are shown.
    """
    rows, columns = pair.sides(role)
    weights = softmax(pair.scores[role][layer - 1, head - 1])
    left = min(14, max(map(len, rows)) + 1)
    room = width - left - len(" →  0.00") - max(len(printable(name)) for name in columns)
    cell = min(2, room // len(columns)) if room > 0 else 0
    lines = [title, *((" " * left + line).rstrip() for line in (_header(columns, cell) if cell else ()))]
    for i, (name, row) in enumerate(zip(rows, weights, strict=True)):
        best = int(row.argmax())
        cells = [
            SHADES[min(4, math.ceil(w * 4 - 0.2))] * cell if role != "decoder" or j <= i else "· "[:cell]
            for j, w in enumerate(row)
        ]
        if colour:
            cells[best] = f"\x1b[1;36m{cells[best]}\x1b[0m"
        lines.append(f"{_fit(name, left)}{''.join(cells)} → {printable(columns[best])} {row[best]:.2f}")
    return lines


def _png(path: Path, pair: _Pair, role: str, layer: int) -> None:
    """Draw all heads of a layer with matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingError(
            "a PNG needs matplotlib: pip install 'nmt-cli[plot]'. The page is written without it"
        ) from None
    rows, columns = pair.sides(role)
    weights = softmax(pair.scores[role][layer - 1])
    across = min(4, len(weights))
    down = -(-len(weights) // across)
    figure = Figure(figsize=(1 + 0.22 * len(columns) * across, 1 + 0.25 * len(rows) * down), layout="constrained")
    for head, axes in enumerate(figure.subplots(down, across, squeeze=False).flat):
        if head >= len(weights):
            axes.set_axis_off()
            continue
        axes.imshow(weights[head], cmap="Blues", vmin=0, vmax=1)
        axes.set_title(f"head {head + 1}")
        shown = [[printable(name).replace("$", r"\$") for name in names] for names in (columns, rows)]
        axes.set_xticks(range(len(columns)), shown[0], rotation=90, fontsize=7)
        axes.set_yticks(range(len(rows)), shown[1], fontsize=7)
    figure.suptitle(f"{ROLE_NAMES[role]}, layer {layer}")
    figure.savefig(path, format="png", dpi=120)
