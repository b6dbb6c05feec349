"""Compare nmt with fxtranslate and Marian with an SSRU model on one core: speed, start-up time, memory, equal lines.

    pip install pymarian==1.12.42 fxtranslate
    python tests/benchmarks/firefox_models.py model.npz vocab.spm test.en --references test.de --lines 200

`model.npz` is a Marian model with one vocabulary for both languages. The script writes it in the layout of Firefox's
models, in float32 and in 8 bits, with activation scales (alphas) measured on the text, and imports both. Each system
then translates greedily in its own process: all lines at once, and some line by line. Times are CPU seconds, the
minimum over all rounds.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1] / "helpers")]

from binary_marian import items_of, write_items  # noqa: E402

NAME = "model.ende.intgemm.alphas.bin"
SYSTEMS = "nmt int8", "fxtranslate int8", "nmt fp32", "fxtranslate fp32", "marian fp32"


def measured_alphas(model: Path, lines: list[str]) -> dict[str, float]:
    """Return each matrix's alpha: 127 / (mean + 1.1 standard deviations) of the largest absolute input of each line."""
    import torch

    from nmt_cli.transformer import attention, recurrence
    from nmt_cli.transformer import model as network
    from nmt_cli.transformer.model import layers, pack
    from nmt_cli.transformer.weights import load_model
    from nmt_cli.translation.translator import Translator

    loaded, names, seen = load_model(model), dict[Any, list[str]](), defaultdict[str, list[float]](list)
    for side, stack in (("encoder", loaded.model.encoder), ("decoder", loaded.model.decoder)):
        for number, layer in enumerate(layers(stack), 1):
            start = f"{side}_l{number}_"
            if layer.recurrent:
                names |= {layer.recurrence.value: [start + "rnn_W"], layer.recurrence.forget: [start + "rnn_Wf"]}
            else:
                names[layer.self_attention.query_key_value] = [f"{start}self_W{part}" for part in "qkv"]
                names[layer.self_attention.output] = [start + "self_Wo"]
            if side == "decoder":
                names[layer.cross_attention.query] = [start + "context_Wq"]
                names[layer.cross_attention.key_value] = [start + "context_Wk", start + "context_Wv"]
                names[layer.cross_attention.output] = [start + "context_Wo"]
            names |= {layer.feed_forward.inner: [start + "ffn_W1"], layer.feed_forward.outer: [start + "ffn_W2"]}
    plain = attention.linear

    def noted(x: Any, layer: Any) -> Any:
        for name in names[layer]:
            seen[name].append(float(x.abs().max()))
        return plain(x, layer)

    translator = Translator.of(loaded.model, loaded.tokenizer, loaded.recipe, torch.float32)
    answers = [each.text for each in translator.translate(lines, beam=1, split=False)]
    for module in (attention, network, recurrence):
        module.linear = noted  # type: ignore[attr-defined]
    with torch.inference_mode():
        for pair in zip(lines, answers, strict=True):
            src, tgt = (np.array(ids) for ids in loaded.tokenizer.encode_pair(*pair))
            batch = pack(src, np.array([len(src)]), tgt, np.array([len(tgt)]))
            seen["none"].append(float(loaded.model(batch).abs().max()))
    for module in (attention, network, recurrence):
        module.linear = plain  # type: ignore[attr-defined]
    return {name: 127 / (np.mean(values) + 1.1 * np.std(values)) for name, values in seen.items()}


def prepare(arguments: argparse.Namespace, lines: list[str]) -> None:
    """Write the model in float32 and in 8 bits, and import both."""
    from nmt_cli.interop.importing import import_model

    alphas = None
    with np.load(arguments.model) as archive:
        arrays = dict(archive)
    for kind in ("fp32", "int8"):
        directory = arguments.work / kind
        directory.mkdir(parents=True)
        write_items(directory / NAME, items_of(arrays, int8=kind == "int8", alphas=alphas))
        (directory / "vocab.ende.spm").write_bytes(arguments.vocabulary.read_bytes())
        import_model(directory, arguments.work / f"nmt-{kind}")
        alphas = measured_alphas(arguments.work / "nmt-fp32", lines[:100]) if kind == "fp32" else alphas


def open_system(name: str, work: Path) -> Any:
    """Return a function that translates lines with one of SYSTEMS."""
    toolkit, kind = name.split()
    vocabulary = work / kind / "vocab.ende.spm"
    if toolkit == "nmt":
        from nmt_cli import Translator

        translator = Translator(work / f"nmt-{kind}", precision=kind, workers=1)
        options: Any = {"beam": 1, "alpha": 0.0, "split": False, "copy_wordless": False}
        return lambda lines: [each.text for each in translator.translate(lines, **options)]
    if toolkit == "fxtranslate":
        import fxtranslate

        theirs = fxtranslate.Translator((work / kind / NAME).read_bytes(), *[vocabulary.read_bytes()] * 2)
        return lambda lines: [theirs.translate(line) for line in lines]
    import pymarian

    options = f"--models {work / kind / NAME} --vocabs {vocabulary} {vocabulary} --cpu-threads 1 --beam-size 1 --quiet"
    marian = pymarian.Translator(
        f"{options} --quiet-translation --mini-batch 32 --maxi-batch 100 --maxi-batch-sort src"
    )
    return lambda lines: marian.translate("\n".join(lines)).split("\n")


def measure(name: str, work: Path, lines: list[str]) -> dict[str, Any]:
    before = time.process_time()
    translate = open_system(name, work)
    first = translate(lines[:1])
    start = time.process_time() - before
    before = time.process_time()
    answers = translate(lines)
    together = time.process_time() - before
    before = time.process_time()
    for line in lines[:40]:
        translate([line])
    alone = (time.process_time() - before) / len(lines[:40])
    [peak] = [line for line in Path("/proc/self/status").read_text().split("\n") if line.startswith("VmHWM")]
    memory = int(peak.split()[1]) / 1024  # ru_maxrss would count the memory of the parent
    return {"answers": answers, "start": start, "together": together, "alone": alone, "memory": memory, "first": first}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--references", type=Path)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("firefox-benchmark"))
    parser.add_argument("--system", choices=SYSTEMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    lines = arguments.text.read_text("utf-8").split("\n")[: arguments.lines]
    if arguments.system:
        print(json.dumps(measure(arguments.system, arguments.work, lines)))
        return
    if not arguments.work.exists():
        prepare(arguments, lines)
    runs = defaultdict[str, list[dict[str, Any]]](list)
    for _ in range(arguments.rounds):
        for name in SYSTEMS:
            done = subprocess.run([sys.executable, *sys.argv, "--system", name], capture_output=True, text=True)
            if done.returncode:
                print(f"{name}: {done.stderr[-300:]}", file=sys.stderr)
            else:
                runs[name].append(json.loads(done.stdout.strip().split("\n")[-1]))
    words = sum(len(line.split()) for line in lines)
    references = arguments.references.read_text("utf-8").split("\n")[: len(lines)] if arguments.references else []
    reference = runs["nmt fp32"][0]["answers"]
    for name, found in runs.items():
        least = {key: min(run[key] for run in found) for key in ("start", "together", "alone", "memory")}
        answers = found[0]["answers"]
        same = sum(a == b for a, b in zip(answers, reference, strict=True))
        begins = sum(a.startswith(b) or b.startswith(a) for a, b in zip(answers, reference, strict=True))
        produced = sum(len(answer.split()) for answer in answers)
        score = ""
        if references:
            import sacrebleu

            score = f", BLEU {sacrebleu.corpus_bleu(answers, [references]).score:.2f}"
        print(
            f"{name}: {words / least['together']:,.0f} source words/s, {produced / least['together']:,.0f} target; "
            f"one line alone {1000 * least['alone']:.1f} ms; start {least['start']:.2f} s; {least['memory']:.0f} MB; "
            f"equal to nmt fp32 {same}, or one is a prefix of the other {begins}, of {len(lines)} lines{score}"
        )


if __name__ == "__main__":
    main()
