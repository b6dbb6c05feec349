"""The import command: a model of transformers or of Marian as a model directory, to translate with and to fine-tune."""

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import torch

from nmt_cli.corpus.tokenizer import UNK, Tokenizer, normalise, target_file
from nmt_cli.interop import hf, hub, marian, npz
from nmt_cli.interop.proof import compare
from nmt_cli.recipe import schema
from nmt_cli.storage import artefact
from nmt_cli.system.console import say
from nmt_cli.system.errors import DataError, MissingError, OutputError
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import load_into, save_model
from nmt_cli.translation.translator import Translator

LINES, TOKENS = 12, 4  # of random text, on which both models are compared


def import_marian(source: Path | str, out: Path) -> Path:
    """Turn a Marian model into the model directory `out`, and return it.

    `source` is a directory as transformers or Marian writes it, or OWNER/NAME or OWNER/NAME@REVISION of the hub.
    """
    if out.exists():
        raise OutputError(f"{out} exists already. Choose another --out")
    directory, imported = Path(source), Path(source).resolve().name
    if not directory.exists():
        if not re.fullmatch(hub.NAME, str(source)):
            raise MissingError(f"no directory {source}. A model of the hub is named OWNER/NAME")
        directory = hub.download(str(source))
        imported = f"{str(source).partition('@')[0]}@{directory.name}"
    foreign = npz.read(directory) if npz.present(directory) else hf.read(directory)
    settings = foreign.settings.model_copy(update={"name": imported})
    try:
        ours = marian.from_marian(foreign.tensors, settings.model, foreign.ids, foreign.start)
    except (RuntimeError, IndexError, KeyError) as error:  # of torch
        what = str(error).partition("\n")[0][:150]
        raise DataError(f"{directory} cannot be imported: its tensors do not fit together: {what}") from None
    model = Transformer(settings.model, len(foreign.ids[1]))
    load_into(model, ours, directory)
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "tokenizer.model"
        for path, data in zip((file, target_file(file)), foreign.tokenizers, strict=False):
            path.write_bytes(data)
        proof = _prove(model.eval(), Tokenizer(file), settings, foreign.peer)
        weights = {path.name: artefact.sha256(path) for path in foreign.files}
        manifest = {"imported": imported, "weights": weights, "proof": proof, "steps": []}
        save_model(out, ours, settings, file, manifest)
    say(f"{out} is {imported}. {proof}")
    return out


def cached(asked: str) -> Path:
    """Return the model directory of OWNER/NAME or OWNER/NAME@REVISION of the hub, importing it the first time.

    It lies in $XDG_CACHE_HOME/nmt/models; the next call asks the hub nothing. Remove it to import a newer commit.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nmt" / "models"
    place = home / re.sub(r"[/@]+", "--", asked)
    if not artefact.present(place):
        try:
            import_marian(asked, place)
        except OutputError:
            if not artefact.present(place):  # if it is there now, another process was faster
                raise
    return place


def _prove(model: Transformer, tokenizer: Tokenizer, settings: schema.Recipe, peer: Any) -> str:
    """Compare tokens, log-probabilities and translations on random text, and return what came of it."""
    if peer is None:
        return "It has not been compared: pymarian is not installed."
    codes, sides = list[str](), list[list[str]]()
    for side in (tokenizer, tokenizer.target):  # each of tokens without a character that its model does not know
        alone = side.decode([[i] for i in range(side.vocabulary_size)])
        codes = codes or [text for i, text in enumerate(alone) if side is tokenizer and side.language([i])]
        known = [i for i, ids in enumerate(side.encode(alone)) if ids and UNK not in ids and not side.language(ids)]
        draw = torch.randint(len(known), (LINES, TOKENS), generator=torch.Generator().manual_seed(1)).tolist()
        sides.append([normalise(line) for line in side.decode([[known[k] for k in row] for row in draw])])
    lines = [*sides[0], *(f"{code} {line}" for code, line in zip(codes, sides[0], strict=False))]
    if codes:
        peer.check_ids(tokenizer, codes, [])
    # A token that a .spm file has and vocab.json has not is unknown to theirs, and several shorter ones to ours.
    peer.check_ids(tokenizer, lines, sides[1], allowed=LINES // 2)
    try:
        translator = Translator.of(model, tokenizer, settings, torch.float32)
        return compare(translator, peer, dict(enumerate(lines)), exact=True)[0]
    except DataError as error:
        raise DataError(f"{settings.name} computes something else than our model with its weights: {error}") from None
