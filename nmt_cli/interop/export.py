"""The export command: a trained model where transformers and CTranslate2 can use it, with proof that it is the same."""

import importlib.util
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt_cli import artefact, recipe
from nmt_cli.console import say, table, warn
from nmt_cli.errors import DataError, MissingError, OutputError, UsageError

if TYPE_CHECKING:
    from nmt_cli.interop.proof import Proof
    from nmt_cli.transformer.weights import LoadedModel

TARGETS = {"hf": ("transformers",), "ctranslate2": ("transformers", "ctranslate2")}
QUANTIZATIONS = ("float32", "bfloat16", "int8")
NUM_LINES = 100


def export(model: Path, target: str, out: Path, quantization: str | None, lines: Path | None) -> int:
    """Write a model for another toolkit, prove it there, and return the exit code.

    Args:
        model: a model directory or a run.
        target: "hf" or "ctranslate2".
        out: the new directory.
        quantization: of CTranslate2's weights; None for float32.
        lines: source sentences to compare on; None for the first of the corpus's dev. All of a given file are used.

    Raises:
        UsageError: a wrong option, or a package is not installed.
        DataError: the other toolkit cannot compute the model, or computes something else.
    """
    _check(target, out, quantization)
    from nmt_cli.corpus.cleaning import normalise
    from nmt_cli.corpus.tokenizer import Tokenizer
    from nmt_cli.interop import card, hf, peers, proof, write
    from nmt_cli.transformer.weights import load_model
    from nmt_cli.translation.lines import encode

    loaded = load_model(model)
    decoding = loaded.recipe.decoding
    tokenizer = Tokenizer(loaded.tokenizer_file)
    texts, references = _lines(loaded, lines)
    sources = encode(tokenizer, texts)
    room = loaded.recipe.model.max_length - decoding.extra_length
    kept = [i for i, ids in enumerate(sources) if 0 < len(ids) <= room]
    if not kept:
        raise DataError(f"{lines or 'the dev text'} has no line of 1 to {room} pieces to compare on")
    about: dict[str, Any] = {"target": target, "quantization": quantization or "float32"}
    with artefact.staged(out, "export", about) as stage, tempfile.TemporaryDirectory() as temporary:
        directory = stage if target == "hf" else Path(temporary)
        write.write_hf(loaded, directory)
        peer: peers.Transformers | peers.CTranslate2
        if target == "hf":
            peer = peers.Transformers(stage, hf.exported_order(tokenizer.vocabulary_size))
            _same_ids(peer.encode([normalise(texts[i]) for i in kept]), [sources[i] for i in kept])
        else:
            write.write_ctranslate2(directory, stage, about["quantization"])
            peer = peers.CTranslate2(stage, tokenizer)
        say(f"comparing {len(kept)} translations")
        exact = about["quantization"] == "float32"
        found = proof.compare(
            loaded.model, peer, [sources[i] for i in kept], decoding.beam, decoding.extra_length, exactly=exact
        )
        text = _judge(found, tokenizer, kept, [references[i] for i in kept] if references else None, exact)
        length = round(statistics.median(len(ids) + 1 for ids in found.ours))
        penalty = round(decoding.alpha * length / (5 + length), 2)
        if target == "hf":
            write.write_generation_config(loaded, penalty, stage)
        about["proof"] = text
        facts = {
            "limit": min(write.LONGEST, loaded.recipe.model.max_length),
            "penalty": penalty,
            "length": length,
            "proof": text,
            "scores": _scores(loaded),
        }
        facts["parameters"] = sum(p.numel() for p in loaded.model.parameters())
        readme = card.card(loaded.recipe, target, out, normalise(texts[kept[0]]), facts)
        artefact.write_file(stage / "README.md", readme.encode())
        artefact.write_file(stage / "recipe.yaml", recipe.to_yaml(loaded.recipe))
    say(f"{text}\n{out} is ready; its README.md shows how to use it")
    return 0


def _check(target: str, out: Path, quantization: str | None) -> None:
    """Refuse wrong options before anything heavy is imported."""
    if target not in TARGETS:
        raise UsageError(f"--to must be one of {', '.join(TARGETS)}, not {target}")
    if quantization not in (None, *QUANTIZATIONS):
        raise UsageError(f"--quantization must be one of {', '.join(QUANTIZATIONS)}, not {quantization}")
    if target == "hf" and quantization not in (None, "float32"):
        raise UsageError("--quantization is for --to ctranslate2; transformers quantises when it loads")
    need_packages(*TARGETS[target])
    if out.exists():
        raise OutputError(f"{out} exists already. Choose another --out")


def need_packages(*names: str) -> None:
    """Check that these packages are installed, without importing them.

    Raises:
        UsageError: one is not.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UsageError(f'this needs the package {name}. Install it: pip install "nmt-cli[export]"')


def _lines(loaded: "LoadedModel", file: Path | None) -> tuple[list[str], list[str] | None]:
    """Return the sentences to compare on, and their references where there are."""
    from nmt_cli.corpus.store import open_corpus, read_lines

    if file is not None:
        if not file.is_file():
            raise MissingError(f"no file {file}")
        return read_lines(file), None
    data = Path("data") / str(loaded.recipe.corpus.name)
    if not artefact.present(data):
        raise MissingError(f"the export is compared on real sentences, and {data} is not here. Give --lines FILE")
    src, tgt = open_corpus(data).lines("dev")
    return src[:NUM_LINES], tgt[:NUM_LINES]


def _same_ids(theirs: list[list[int]], ours: list[list[int]]) -> None:
    different = sum(a != b for a, b in zip(theirs, ours, strict=True))
    if different and importlib.util.find_spec("sacremoses") is None:
        raise DataError(f"MarianTokenizer cuts {different} of {len(ours)} lines into other pieces; nothing is exported")
    if different:
        warn(f"with sacremoses installed MarianTokenizer changes {different} of {len(ours)} lines before it cuts them")


def _judge(found: "Proof", tokenizer: Any, kept: list[int], references: list[str] | None, exact: bool) -> str:
    """Return what the comparison says, after showing the lines that differ.

    Raises:
        DataError: the export differs beyond rounding and was not quantised.
    """
    from nmt_cli.scoring.metrics import corpus_bleu

    rows = [
        [
            f"{name} {kept[d.line] + 1}",
            *tokenizer.decode([d.ours, d.theirs]),
            f"{d.gap:.1e}",
            f"{d.near_tie.gap:.1e} at step {d.near_tie.step}" if d.near_tie else "none",
        ]
        for name, differences in found.differences.items()
        for d in differences
    ]
    if rows and exact:
        table(
            "lines translated otherwise", ["search, line", "ours", "theirs", "ours likelier by", "near-tie"], rows[:20]
        )
    same = {name: f"{n - len(found.differences[name])} of {n}" for name, n in found.compared.items()}
    text = (
        f"On {len(found.ours)} sentences ({found.tokens:,} tokens), without length penalty: the largest difference of "
        f"a token's log-probability is {found.largest:.1e}; greedy output is the same for {same['greedy']} that end "
        f"within the limit, beam-{found.beam} output for {same['beam']}."
    )
    ties = [d.near_tie for differences in found.differences.values() for d in differences if d.near_tie]
    if ties:
        widest = max(tie.gap for tie in ties)
        text += (
            f" {len(ties)} of the others {'come' if len(ties) > 1 else 'comes'} of a near-tie: our search finds either "
            f"translation if two hypotheses {widest:.1e} nats apart or less, which is within rounding, change places."
        )
    if exact and not found.same:
        raise DataError(f"the exported model is not the same and is not kept. {text}")
    if not exact:
        ours, theirs = tokenizer.decode(found.ours), tokenizer.decode(found.theirs)
        if references:
            before, after = corpus_bleu(ours, references)[0], corpus_bleu(theirs, references)[0]
            text += f" BLEU changes from {before:.2f} to {after:.2f} ({after - before:+.2f})."
        else:
            text += f" BLEU of its output against that of the float32 model is {corpus_bleu(theirs, ours)[0]:.2f}."
    return text


def _scores(loaded: "LoadedModel") -> str:
    """Return test scores if `nmt reproduce` translated the test set with this very model, else how to get them."""
    from nmt_cli.corpus.store import open_corpus, read_lines
    from nmt_cli.scoring.metrics import corpus_bleu, corpus_chrf
    from nmt_cli.transformer.weights import WEIGHTS

    run, data = loaded.directory.parent, Path("data") / str(loaded.recipe.corpus.name)
    stamp = run / "translations.json"
    made_by = artefact.digest([loaded.manifest["files"][WEIGHTS]["sha256"], recipe.to_plain(loaded.recipe.decoding)])
    known = artefact.read_json(stamp).get("made_by") if stamp.exists() else None
    if known == made_by and artefact.present(data):
        corpus = open_corpus(data)
        references = corpus.lines("test")[1]
        if references and corpus.identity == loaded.manifest.get("corpus"):
            hypotheses = read_lines(run / "test.hyp")
            scores = [("BLEU", corpus_bleu(hypotheses, references)), ("chrF2", corpus_chrf(hypotheses, references))]
            return "\n".join(f"- test {name} {score:.2f} (`{signature}`)" for name, (score, signature) in scores)
    return "Not measured at export. Measure them: `nmt score --model MODEL --corpus CORPUS`."
