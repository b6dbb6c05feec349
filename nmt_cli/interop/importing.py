"""Convert a model of another toolkit to a model directory (the command `nmt import`)."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from nmt_cli.corpus.languages import is_language
from nmt_cli.corpus.tokenizer import UNK, Tokenizer, normalize, target_file
from nmt_cli.interop import hub
from nmt_cli.interop.adapters import Adapter
from nmt_cli.interop.argos_files import read_argos
from nmt_cli.interop.ctranslate2_files import read_ctranslate2
from nmt_cli.interop.foreign import UNNAMED, ForeignModel
from nmt_cli.interop.formats import has_ctranslate2_model, is_argos_package
from nmt_cli.interop.marian_files import has_marian_model, read_marian
from nmt_cli.interop.named_models import cache_directory
from nmt_cli.interop.transformers_files import read_transformers
from nmt_cli.interop.verification import compare
from nmt_cli.interop.vocabulary_map import VMAP, read_vocabulary_map
from nmt_cli.recipe import schema
from nmt_cli.storage import artefact
from nmt_cli.system.console import say
from nmt_cli.system.errors import DataError, DivergedError, MissingError, OutputError, UsageError
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import load_into, save_model
from nmt_cli.translation import shortlist
from nmt_cli.translation.translator import Translator

LINES, TOKENS = 12, 4  # number of random lines used to compare the two models, and tokens per line
# For each format, a function that recognizes a path, and the function that reads it. The first match applies. Other
# paths are read as models of transformers.
FORMATS: list[tuple[Callable[[Path], bool], Callable[[Path], ForeignModel]]] = [
    (is_argos_package, read_argos),
    (has_marian_model, read_marian),
    (has_ctranslate2_model, read_ctranslate2),
]


def import_model(source: Path | str, out: Path, src: str | None = None, tgt: str | None = None) -> Path:
    """Convert a model of another toolkit to the new model directory `out`, and return `out`.

    `source` is an Argos package, a model directory of CTranslate2, transformers or Marian, or a model on the hub
    (OWNER/NAME, with or without @REVISION). `src` and `tgt` replace the languages that the model's files name. Files of
    CTranslate2 and Marian name no languages, but Firefox's file names do.

    If the other toolkit is installed, compare the results of both models. If the results differ, raise DataError and
    write nothing. If the toolkit is not installed, write `out` without verification.
    """
    if out.exists():
        raise OutputError(f"{out} exists already. Choose another --out")
    for code in filter(None, (src, tgt)):
        if not is_language(code):
            raise UsageError(f"{code[:40]!r} is not a language code, such as de, zh or pt-BR")
    directory = Path(source)
    name = directory.resolve().name
    if not directory.exists():
        if not hub.HUB_NAME.fullmatch(str(source)):
            raise MissingError(f"no file or directory {source}. To import from the hub, pass OWNER/NAME")
        directory = hub.download(str(source))
        name = f"{str(source).partition('@')[0]}@{directory.name}"
    read = next((reader for matches, reader in FORMATS if matches(directory)), read_transformers)
    with np.errstate(all="ignore"):  # no warnings about weights that are not finite: save_model refuses them
        foreign = read(directory)
    languages = {side: code for side, code in (("src", src), ("tgt", tgt)) if code}
    corpus = foreign.recipe.corpus.model_copy(update=languages)
    recipe = foreign.recipe.model_copy(update={"name": name, "corpus": corpus})
    model = Transformer(recipe.model, len(foreign.tensors["embedding.weight"]))
    load_into(model, foreign.tensors, directory)
    with tempfile.TemporaryDirectory() as temporary:
        tokenizer_file = Path(temporary) / "tokenizer.model"
        for path, data in zip((tokenizer_file, target_file(tokenizer_file)), foreign.tokenizers, strict=False):
            path.write_bytes(data)
        try:
            tokenizer = Tokenizer(tokenizer_file)
        except DataError as error:  # name the model instead of the temporary directory
            raise DataError(str(error).replace(f"{temporary}/", f"{directory}: ")) from None
        proof = verify_import(model.eval(), tokenizer, recipe, foreign.adapter)
        proof = f"{proof} {foreign.note}".strip()
        weights = {path.name: artefact.sha256(path) for path in foreign.weight_files}
        seen = {"seen_tokens": foreign.seen_tokens} if foreign.seen_tokens else {}
        manifest = {"imported": name, "weights": weights, "proof": proof, "steps": [], **seen}
        found = foreign.shortlist
        if found is None and (directory / VMAP).is_file():  # read the map first: if it is damaged, save no model
            found = read_vocabulary_map(directory / VMAP, tokenizer)
        save_model(out, foreign.tensors, recipe, tokenizer_file, manifest)
        if found:
            artefact.replace_file(out / shortlist.FILE, found.to_bytes(tokenizer_file))
    say(f"{out} is {name}. {proof}")
    if missing := [f"--{side} CODE" for side, unnamed in UNNAMED.items() if getattr(corpus, side) == unnamed]:
        say(
            f"The files of {name} do not name its languages. To set them, remove {out} and run nmt import again with "
            f"{' '.join(missing)}"
        )
    return out


def import_cached(name: str) -> Path:
    """Return the cache directory of the model OWNER/NAME or OWNER/NAME@REVISION. The first call imports the model.

    Later calls do not access the network; remove the directory to import a newer commit.
    """
    directory = cache_directory() / re.sub(r"[/@]+", "--", name)
    if not artefact.present(directory):
        try:
            import_model(name, directory)
        except OutputError:
            if not artefact.present(directory):  # if present, another process has imported the model meanwhile
                raise
    return directory


def verify_import(model: Transformer, tokenizer: Tokenizer, recipe: schema.Recipe, adapter: Adapter | None) -> str:
    """Compare the tokens, log-probabilities and translations of both models on random text, and return a report.

    Raise DataError if the results differ or cannot be computed. If `adapter` is None, compare nothing, and return a
    sentence that gives the reason.
    """
    if adapter is None:
        return "The import was not verified, because the model's toolkit (pymarian or ctranslate2) is not installed."
    sources = _random_lines(tokenizer)
    targets = _random_lines(tokenizer.target)
    tags = [
        text
        for i, text in enumerate(tokenizer.decode([[i] for i in range(tokenizer.vocabulary_size)]))
        if tokenizer.language([i])
    ]
    if tags:
        adapter.check_tokenizer(tokenizer, tags, [])
    lines = [*sources, *(f"{tag} {line}" for tag, line in zip(tags, sources, strict=False))]
    # Allow some lines to differ. If the .spm file has a token that vocab.json lacks, the other toolkit returns <unk>
    # for this token, but our tokenizer splits it into shorter tokens.
    adapter.check_tokenizer(tokenizer, lines, targets, allowed=LINES // 2)
    try:
        translator = Translator.of(model, tokenizer, recipe, torch.float32)
        return compare(translator, adapter, dict(enumerate(lines)), exact=True, show=False)[0]
    except (DataError, DivergedError) as error:
        raise DataError(f"the import of {recipe.name} could not be verified: {error}") from None


def _random_lines(side: Tokenizer) -> list[str]:
    """Return lines of random tokens whose characters the tokenizer knows."""
    texts = side.decode([[i] for i in range(side.vocabulary_size)])
    known = [i for i, ids in enumerate(side.encode(texts)) if ids and UNK not in ids and not side.language(ids)]
    if not known:
        raise DataError("the tokenizer does not fit the vocabulary: the encoding of every token contains <unk>")
    choices = torch.randint(len(known), (LINES, TOKENS), generator=torch.Generator().manual_seed(1)).tolist()
    return [normalize(line) for line in side.decode([[known[k] for k in row] for row in choices])]
