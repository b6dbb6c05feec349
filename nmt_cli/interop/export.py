"""The export command: write a model for transformers, CTranslate2 or Argos, and verify the result."""

import contextlib
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nmt_cli import __version__
from nmt_cli.corpus.readers import read_lines
from nmt_cli.corpus.store import open_corpus
from nmt_cli.corpus.tokenizer import LANGUAGE, PAD, copy, normalize
from nmt_cli.interop.adapters import Adapter, CTranslate2, TokenIds, Transformers
from nmt_cli.interop.argos_export import VERSION, prepare_package, write_archive
from nmt_cli.interop.argos_package import SENTENCEPIECE, argos_code
from nmt_cli.interop.formats import ARGOS
from nmt_cli.interop.packages import import_package
from nmt_cli.interop.transformers_marian import MAX_OUTPUT, write_transformers
from nmt_cli.interop.verification import compare
from nmt_cli.recipe import loading, schema
from nmt_cli.scoring.metrics import corpus_bleu
from nmt_cli.storage import artefact
from nmt_cli.system.console import counted, say
from nmt_cli.system.errors import DataError, MissingError, OutputError, UsageError
from nmt_cli.transformer.weights import LoadedModel, load_model
from nmt_cli.translation.stored_models import directions_of
from nmt_cli.translation.translator import Translator

LIBRARIES = {"hf": "transformers", "ctranslate2": "ctranslate2", "argos": "ctranslate2"}
WEIGHTS = {"argos": "int8"}  # target -> default type of its weights; float32 for other targets
DEV_LINES = 100  # number of lines of the dev set to compare if the user names no file


def export(model: Path, target: str, out: Path, quantization: str | None, file: Path | None) -> int:
    """Write a model for "hf", "ctranslate2" or "argos" to `out`, and compare its translations of a file with ours.

    `out` is a new directory or, for "argos", a new package file. If `file` is None, translate the first lines of the
    corpus's dev set. Return the exit code. If float32 results differ, raise DataError and keep nothing.
    """
    weights = quantization or WEIGHTS.get(target, "float32")
    if target == "hf" and weights != "float32":
        raise UsageError(
            "--quantization requires --to ctranslate2 or argos, because transformers quantizes when loading"
        )
    if target == "argos" and out.suffix != ARGOS:
        raise UsageError(f"--out must be a file NAME{ARGOS}, not {out}")
    for name in ("transformers", LIBRARIES[target]):
        import_package(name)
    if out.exists():
        raise OutputError(f"{out} exists already. Choose another --out")
    loaded = load_model(model)
    recipe = loaded.recipe
    tokenizer = loaded.tokenizer
    if target == "hf" and tokenizer.moses:
        raise DataError("cannot export: transformers has no tokenizer for bpe.model. Use --to argos or ctranslate2")
    directions = directions_of(loaded.config, tokenizer)
    if target == "argos" and any(each.prefix for each in directions):
        pairs = f"{len(directions)} language pairs" if len(directions) > 1 else "a token for its target language"
        raise DataError(f"cannot export: an Argos package has one language pair, and this model has {pairs}")
    texts, references = comparison_lines(recipe, file, loaded.directory)
    longest = recipe.model.max_length - recipe.decoding.extra_length
    sizes = {i: len(ids) for i, ids in enumerate(tokenizer.encode(texts)) if 0 < len(ids) < longest}
    if not sizes:
        raise DataError(f"{file or 'the dev text'} has no line of 1 to {longest - 1} tokens to verify the export with")
    lines = {i: texts[i] for i in sizes}
    length = round(statistics.median(sizes.values()))
    # The libraries divide scores by length ** penalty. At the median length, this divisor grows at the same relative
    # rate as ours.
    penalty = round(recipe.decoding.alpha * length / (recipe.decoding.penalty_offset + length), 2)
    manifest = {"target": target, "quantization": weights}
    with _staged(out, target, recipe, manifest) as stage:
        adapter: Adapter
        if target == "hf":
            adapter = _write_hf(loaded, penalty, stage, list(lines.values()), references)
        elif target == "argos":
            adapter = _write_argos(loaded, penalty, stage, weights)
        else:
            adapter = _write_ctranslate2(loaded, penalty, stage, weights)
        say(f"comparing {counted(len(lines), 'translation')}")
        translator = Translator.of(loaded.model, tokenizer, recipe, torch.float32)
        proof, ours, theirs = compare(translator, adapter, lines, exact=weights == "float32")
        if weights != "float32":
            chosen = [references[i] for i in lines] if references else []
            proof += f" {_bleu_change(loaded, ours, theirs, chosen)}"
        manifest["proof"] = proof
        card = _model_card(loaded, target, out, texts[min(lines)], length, penalty, proof)
        artefact.write_file(stage / "README.md", card.encode())
        artefact.write_file(stage / "recipe.yaml", loading.to_yaml(recipe))
    say(proof, f"{out} is ready; its README.md shows how to use it")
    return 0


@contextlib.contextmanager
def _staged(out: Path, target: str, recipe: schema.Recipe, manifest: dict[str, Any]) -> Iterator[Path]:
    """Yield a directory to fill. After the block, it becomes `out` or, for "argos", the folder in the package `out`."""
    if target != "argos":
        with artefact.staged(out, "export", manifest) as stage:
            yield stage
        return
    artefact.make_directory(out.parent)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".tmp-nmt-") as temporary:
        pair = "_".join(map(argos_code, (recipe.corpus.src, recipe.corpus.tgt)))
        folder = Path(temporary) / f"translate-{pair}-{VERSION.replace('.', '_')}"
        folder.mkdir()
        yield folder
        write_archive(folder, out)


def comparison_lines(recipe: schema.Recipe, file: Path | None, model: Path) -> tuple[list[str], list[str]]:
    """Return the normalized lines of `file`. If it is None, return lines and references of the dev set."""
    if file is not None:
        if not file.is_file():
            raise MissingError(f"no file {file}")
        return [normalize(line) for line in read_lines(file)], []
    if recipe.corpus.name is None:  # an imported model
        raise MissingError("the export is verified with real sentences. Pass --lines FILE")
    data = recipe.corpus.directory
    beside_runs = model.resolve().parent.parent.parent / data  # for a model in runs/NAME/model
    found = [directory for directory in (data, beside_runs) if artefact.present(directory)]
    if not found:
        raise MissingError(f"the export is verified with real sentences, and {data} is missing. Pass --lines FILE")
    src, tgt = open_corpus(found[0]).lines("dev")
    return [normalize(line) for line in src[:DEV_LINES]], tgt[:DEV_LINES]


def _write_hf(loaded: LoadedModel, penalty: float, out: Path, lines: list[str], references: list[str]) -> Adapter:
    adapter = Transformers(out, write_transformers(loaded, penalty, out))
    adapter.check_tokenizer(loaded.tokenizer, lines, [normalize(line) for line in references])
    return adapter


def _write_ctranslate2(loaded: LoadedModel, penalty: float, out: Path, quantization: str) -> CTranslate2:
    from ctranslate2.converters import TransformersConverter

    if loaded.model.embedding.weight[PAD].any():
        raise DataError("cannot export: CTranslate2 starts decoding with a zero embedding, and this model does not")
    with tempfile.TemporaryDirectory() as temporary:
        write_transformers(loaded, penalty, Path(temporary))
        if (Path(temporary) / "target_vocab.json").is_file():
            raise DataError("cannot export: CTranslate2 converts only Marian models with one vocabulary, not two")
        TransformersConverter(temporary).convert(str(out), quantization=quantization, force=True)
    # In files for transformers, tokens such as >>de<< have no leading ▁. Restore it, because our tokens have it.
    vocabulary = out / "shared_vocabulary.json"
    names = {LANGUAGE.sub(r"\1", token): token for token in loaded.tokenizer.vocabulary}
    tokens = [names[token] for token in json.loads(vocabulary.read_text("utf-8"))]
    vocabulary.write_text(json.dumps(tokens, ensure_ascii=False, indent=2), "utf-8")
    copy(loaded.tokenizer_file, out / "tokenizer.model")
    return CTranslate2(out, [loaded.tokenizer.vocabulary] * 2)


def _write_argos(loaded: LoadedModel, penalty: float, out: Path, quantization: str) -> Adapter:
    (out / "model").mkdir()
    names = _write_ctranslate2(loaded, penalty, out / "model", quantization).names
    corpus = loaded.recipe.corpus
    prefix = loaded.recipe.decoding.target_prefix
    prepare_package(out, corpus.src, corpus.tgt, prefix)
    file = out / SENTENCEPIECE
    spm = [file.read_bytes()] * 2 if file.is_file() else []
    return CTranslate2(out / "model", names, spm, ends_source=False, prefix=prefix)


def _bleu_change(loaded: LoadedModel, ours: list[TokenIds], theirs: list[TokenIds], references: list[str]) -> str:
    """Return a sentence about how quantization changes BLEU. Without references, score against our float32 output."""
    corpus = loaded.recipe.corpus
    before_lines, after_lines = (loaded.tokenizer.target.decode([ids[:-1] for ids in side]) for side in (ours, theirs))
    name = "BLEU" if references else "BLEU against the float32 output"
    before, after = (
        corpus_bleu(lines, references or before_lines, language=corpus.tgt, tokenized=corpus.moses)[0]
        for lines in (before_lines, after_lines)
    )
    return f"{name} changes from {before:.2f} to {after:.2f} ({after - before:+.2f})."


def _model_card(loaded: LoadedModel, target: str, out: Path, line: str, length: int, penalty: float, proof: str) -> str:
    """Return the README of an export, with example code that translates `line`."""
    origin = loaded.manifest.get("imported")
    directions = directions_of(loaded.config, loaded.tokenizer)
    codes = dict.fromkeys(code for each in directions for code in (each.source, each.target))
    token = directions[0].prefix.strip()
    offset = loaded.recipe.decoding.penalty_offset
    prefix_note = f"\n- Each source must begin with the token of its target language, such as `{token}`."
    values = {
        "languages": "\n".join(f"- {code}" for code in codes),
        "pairs": ", ".join(f"{each.source} to {each.target}" for each in directions),
        "tokens": prefix_note if token else "",
        "out": out.as_posix(),
        "line": line.replace('"', "'"),
        "length": length,
        "penalty": penalty,
        "divisor": f"(({offset:g} + length) / {offset + 1:g}) ^ {loaded.recipe.decoding.alpha:g}",
        "proof": proof,
        "settings": loaded.recipe,
        "codes": [argos_code(code) for code in (loaded.recipe.corpus.src, loaded.recipe.corpus.tgt)],
        "version": __version__,
        "origin": f"imported from {origin}" if origin else f"trained on {loaded.recipe.corpus.name}",
        "library": LIBRARIES[target],
        "limit": min(MAX_OUTPUT, loaded.recipe.model.max_length),
        "parameters": sum(p.numel() for p in loaded.model.parameters()),
    }
    example = Path(__file__).with_name(f"card_{target}.txt").read_text("utf-8").format(**values)
    return Path(__file__).with_name("card.md").read_text("utf-8").format(**values, example=example)
