"""Compare the speed of `nmt translate`, CTranslate2 and Marian with identical weights, alternating in one run.

    pip install ctranslate2 pymarian                    (a system that is not installed is skipped)
    nmt export MODEL --to ctranslate2 --out EXPORTS/float32      (also: --quantization int8 --out EXPORTS/int8)
    python tests/benchmarks/translate_speed.py --model MODEL --exports EXPORTS --source test.en --reference test.de

Each system runs in its own process, loads its model, warms up, and translates all lines, including tokenization and
detokenization. In each round, every system translates the lines once, one system after another. All use beam 4 and no
length penalty, because the systems define length penalties differently. The table shows medians and ranges of speed,
output tokens per second as counted by the model's tokenizer, and how many translations equal those of the first system.
For nmt, it also shows the latency of one line through a running `nmt translate`. If `pymarian float32` ran, the last
line compares up to 200 of its translations with those of nmt with Marian's positions, whose wavelengths differ from
those of the Transformer paper.

With `--device cuda`, CTranslate2 uses the GPU. nmt always uses a GPU if it finds one. `--source-tokens N` selects the
lines of N tokens, so that all systems stop after the same number of tokens if the model never outputs EOS, for example
because its weights are random.

`--systems "nmt int8" "nmt int8 shortlist" "ctranslate2 int8" "ctranslate2 int8 shortlist"` compares searches with and
without the model's shortlist. For CTranslate2, it is written to the export as vmap.txt.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

BEAM = 4
EXTRA_LENGTH = 50  # maximum length of a translation minus its source's length, in tokens; both include EOS
CPU = "nmt fp32", "nmt int8", "ctranslate2 int8", "ctranslate2 float32"
SYSTEMS = {"cpu": (*CPU, "pymarian intgemm8", "pymarian float32"), "cuda": ("nmt bf16", "ctranslate2 float16")}
Run = Callable[[list[str]], list[str]]
sys.path.insert(0, str(Path(__file__).parents[2]))


def ours(arguments: argparse.Namespace, precision: str, shortlist: bool) -> Run:
    from nmt_cli import Translator

    translator = Translator(arguments.model, precision=precision, workers=arguments.cores)
    search: Any = {"beam": BEAM, "alpha": 0.0, "split": False, "extra_length": EXTRA_LENGTH, "shortlist": shortlist}
    return lambda lines: [t.text for t in translator.translate(lines, **search)]


def our_process(arguments: argparse.Namespace, precision: str, shortlist: bool) -> Run:
    """Return a function that translates through one running `nmt translate`, line by line."""
    options = {"model": arguments.model, "precision": precision, "workers": arguments.cores, "beam": BEAM, "alpha": 0}
    options |= {"split": "off", "extra-length": EXTRA_LENGTH, "shortlist": "auto" if shortlist else "off"}
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    command = [sys.executable, "-m", "nmt_cli", "translate", "--quiet", *words]
    process: Any = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(lines: list[str]) -> list[str]:
        answers = []
        for line in lines:
            print(line, file=process.stdin, flush=True)
            answers.append(process.stdout.readline().removesuffix("\n"))
        return answers

    return run


def ctranslate2(arguments: argparse.Namespace, kind: str, shortlist: bool) -> Run:
    """Return a function that translates with CTranslate2. On a CPU, one single-threaded worker per core is fastest."""
    import ctranslate2
    import sentencepiece

    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(arguments.model / "tokenizer.model"))
    workers, size = (arguments.cores, 1024) if arguments.device == "cpu" else (1, 8192)
    export = arguments.exports / (kind if (arguments.exports / kind).exists() else "float32")
    threads = {"inter_threads": workers, "intra_threads": 1}
    translator = ctranslate2.Translator(str(export), device=arguments.device, compute_type=kind, **threads)
    longest = arguments.source_tokens + EXTRA_LENGTH if arguments.source_tokens else 200

    def run(lines: list[str]) -> list[str]:
        tokens = [[*line, "</s>"] for line in tokenizer.encode(lines, out_type=str)]
        results = translator.translate_batch(
            tokens,
            beam_size=BEAM,
            length_penalty=0,
            max_batch_size=size,
            batch_type="tokens",
            max_decoding_length=longest,
            use_vmap=shortlist,
        )
        return tokenizer.decode([result.hypotheses[0] for result in results])

    return run


def write_vmap(model: Path, export: Path) -> None:
    """Write a model's shortlist as CTranslate2's vocabulary map. The frequent tokens follow an empty source n-gram."""
    from nmt_cli.transformer.directory import open_model
    from nmt_cli.translation.shortlist import read_shortlist

    opened = open_model(model)
    shortlist = read_shortlist(model, opened.tokenizer, opened.tokenizer_file)
    assert shortlist, f"{model} has no shortlist"
    names, begin = opened.tokenizer.vocabulary, 0
    lines = ["\t" + " ".join(names[i] for i in shortlist.frequent)]
    for source, end in enumerate(shortlist.ends):
        lines.append(f"{names[source]}\t" + " ".join(names[i] for i in shortlist.targets[begin:end]))
        begin = end
    (export / "vmap.txt").write_text("".join(f"{line}\n" for line in lines))


def pymarian(arguments: argparse.Namespace, kind: str, _: bool) -> Run:
    """Return a function that translates with the Marian C++ toolkit, with weights of type `kind`."""
    import _pymarian

    model, vocabulary = (arguments.exports / "marian" / name for name in (f"{kind}.bin", "vocab.spm"))
    translator = _pymarian.Translator(
        f"--models {model} --vocabs {vocabulary} {vocabulary} --cpu-threads {arguments.cores} --beam-size {BEAM} "
        "--mini-batch 32 --maxi-batch 100 --maxi-batch-sort src --quiet --quiet-translation"
    )
    return translator.translate  # type: ignore[no-any-return]


def read_pairs(arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the lines to translate and their references."""
    import sentencepiece

    sides = [file.read_text().split("\n") for file in (arguments.source, arguments.reference)]
    pairs = list(zip(*sides, strict=True))
    if arguments.source_tokens:
        tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(arguments.model / "tokenizer.model"))
        pairs = [pair for pair in pairs if len(tokenizer.encode(pair[0])) + 1 == arguments.source_tokens]
    sources, references = zip(*pairs[: arguments.lines], strict=True)
    return list(sources), list(references)


def child(arguments: argparse.Namespace) -> None:
    """Run one system. For each line on stdin, translate all lines once; print times, memory and output as JSON."""
    name, kind, *shortlist = arguments.child.split()
    run = {"nmt": ours, "ctranslate2": ctranslate2, "pymarian": pymarian}[name](arguments, kind, bool(shortlist))
    lines, _ = read_pairs(arguments)
    runs = [run, our_process(arguments, kind, bool(shortlist))] if name == "nmt" else [run]
    for each, count in zip(runs, (64, 3), strict=False):
        each(lines[:count])

    def timed(run: Run, lines: list[str]) -> tuple[float, list[str]]:
        start = time.perf_counter()
        output = run(lines)
        return time.perf_counter() - start, output

    for _ in sys.stdin:
        seconds, output = timed(run, lines)
        alone = [statistics.median(timed(each, [line])[0] for line in lines[: arguments.alone]) for each in runs]
        # not ru_maxrss, which is at least the parent's peak
        peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
        answer = {"seconds": seconds, "alone": alone, "megabytes": int(peak) / 1000, "output": output}
        print(json.dumps(answer), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("model", "exports", "source", "reference"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name, number in (("rounds", 5), ("lines", 1000), ("alone", 20), ("cores", len(os.sched_getaffinity(0)))):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--source-tokens", type=int, help="translate only lines of this many tokens, including EOS")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device of CTranslate2")
    parser.add_argument("--systems", nargs="+", help="default: all installed systems for the device")
    parser.add_argument("--child")
    arguments = parser.parse_args()
    if arguments.child:
        return child(arguments)
    systems = arguments.systems or [s for s in SYSTEMS[arguments.device] if "nmt" in s or find_spec(s.split()[0])]
    import marian_toolkit
    import sacrebleu
    import sentencepiece

    from nmt_cli.transformer.weights import load_model

    loaded = load_model(arguments.model)
    if kinds := [system.split()[1] for system in systems if "pymarian" in system]:
        marian_toolkit.write_model(loaded, arguments.exports / "marian", kinds)
    for system in systems:
        if system.startswith("ctranslate2") and system.endswith("shortlist"):
            write_vmap(arguments.model, arguments.exports / system.split()[1])
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, __file__, *sys.argv[1:], "--child"]
    children = {system: subprocess.Popen([*command, system], **pipes) for system in systems}
    answers: dict[str, list[dict[str, Any]]] = {system: [] for system in children}
    for _ in range(arguments.rounds):
        for system, process in children.items():
            print("go", file=process.stdin, flush=True)
            answers[system].append(json.loads(process.stdout.readline()))
    for process in children.values():
        process.communicate()
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(arguments.model / "tokenizer.model"))
    source, reference = read_pairs(arguments)
    peer = next((system for system in answers if not system.startswith("nmt")), systems[0])
    base = statistics.median(a["seconds"] for a in answers[peer])
    print(f"| system | lines/s (range) | tokens/s | speed vs. {peer} | one line, ms | peak MB | BLEU | same lines |")
    print("|--|--|--|--|--|--|--|--|")
    for system, turns in answers.items():
        seconds = sorted(a["seconds"] for a in turns)
        median_seconds, output = statistics.median(seconds), turns[0]["output"]
        same = sum(map(str.__eq__, output, answers[systems[0]][0]["output"]))
        tokens = sum(map(len, tokenizer.encode(output))) + len(output)
        bleu = sacrebleu.corpus_bleu(output, [reference]).score
        span = f"{len(output) / median_seconds:.0f} ({len(output) / seconds[-1]:.0f}-{len(output) / seconds[0]:.0f})"
        alone = [1000 * statistics.median(times) for times in zip(*(a["alone"] for a in turns), strict=True)]
        latency = ", through a pipe ".join(f"{time:.1f}" for time in alone)
        print(f"| {system} | {span} | {tokens / median_seconds:,.0f} | {base / median_seconds:.2f} | {latency} "
              f"| {turns[-1]['megabytes']:.0f} | {bleu:.2f} | {same} |")  # fmt: skip
    if output := answers.get("pymarian float32", [{"output": []}])[0]["output"][:200]:
        lines = marian_toolkit.translate_with_marian_positions(loaded, source[: len(output)], BEAM)
        same = sum(map(str.__eq__, output, lines))
        print(f"{same} of {len(output)} lines of pymarian float32 equal those of nmt fp32 with Marian's positions")


if __name__ == "__main__":
    main()
