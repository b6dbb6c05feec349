"""The speed of translate beside CTranslate2 and transformers, with identical weights, alternating in one run.

    nmt export MODEL --to hf --out EXPORTS/hf           (and --to ctranslate2 into EXPORTS/float32 and EXPORTS/int8)
    python tests/benchmarks/translate_speed.py --model MODEL --exports EXPORTS --source test.en --reference test.de \
        --peer-python PYTHON_WITH_CTRANSLATE2_AND_TRANSFORMERS

Every system is a process of its own that loads, warms up, and then translates all lines from text to text, some times,
in turn with the others. Beam 4 and no length penalty (the systems' formulas differ), so that all search for the same.
Prints medians with their range, tokens by the model's own tokenizer, and the ratio to the first peer.
With `--device cuda` the peers use the GPU, as ours does: --systems "nmt bf16" "ctranslate2 float16".
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEAM = 4
OURS = ("nmt fp32", "nmt bf16", "nmt int8")
PEERS = ("ctranslate2 int8", "ctranslate2 float32", "transformers float32")
Run = Callable[[list[str]], list[str]]


def ours(arguments: argparse.Namespace, precision: str) -> Run:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from nmt_cli import Translator

    translator = Translator(arguments.model, precision=precision, workers=arguments.cores)

    return lambda lines: [t.text for t in translator.translate(lines, beam=BEAM, alpha=0.0, split=False)]


def ctranslate2(arguments: argparse.Namespace, kind: str) -> Run:
    """Return translation by CTranslate2: on a CPU as many workers as cores, one thread each, its best setting here."""
    import ctranslate2
    import sentencepiece

    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(arguments.model / "tokenizer.model"))
    workers, size = (arguments.cores, 1024) if arguments.device == "cpu" else (1, 8192)
    export = arguments.exports / (kind if (arguments.exports / kind).exists() else "float32")
    threads = {"inter_threads": workers, "intra_threads": 1}
    translator = ctranslate2.Translator(str(export), device=arguments.device, compute_type=kind, **threads)

    def run(lines: list[str]) -> list[str]:
        tokens = [[*line, "</s>"] for line in tokenizer.encode(lines, out_type=str)]
        results = translator.translate_batch(
            tokens, beam_size=BEAM, length_penalty=0, max_batch_size=size, batch_type="tokens", max_decoding_length=200
        )
        return tokenizer.decode([result.hypotheses[0] for result in results])

    return run


def transformers(arguments: argparse.Namespace, kind: str) -> Run:
    """Return translation by generate, lines sorted by length, 64 at a time."""
    import torch
    from transformers import MarianMTModel, MarianTokenizer, logging

    logging.set_verbosity_error()
    torch.set_num_threads(arguments.cores)
    tokenizer = MarianTokenizer.from_pretrained(arguments.exports / "hf")
    model = MarianMTModel.from_pretrained(arguments.exports / "hf", dtype=getattr(torch, kind))
    model.eval().to(arguments.device)

    def run(lines: list[str]) -> list[str]:
        order = sorted(range(len(lines)), key=lambda i: -len(lines[i]))
        texts: dict[int, str] = {}
        for start in range(0, len(order), 64):
            part = order[start : start + 64]
            batch = tokenizer([lines[i] for i in part], return_tensors="pt", padding=True).to(arguments.device)
            with torch.inference_mode():
                ids = model.generate(**batch, num_beams=BEAM, length_penalty=0.0, max_new_tokens=200)
            texts.update(zip(part, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True))
        return [texts[i] for i in range(len(lines))]

    return run


def child(arguments: argparse.Namespace) -> None:
    """Serve one system: translate once for every line on stdin, and answer with the seconds it took."""
    name, kind = arguments.child.split()
    run = {"nmt": ours, "ctranslate2": ctranslate2, "transformers": transformers}[name](arguments, kind)
    lines = arguments.source.read_text().split("\n")[: arguments.lines]
    run(lines[:64])

    def timed(lines: list[str]) -> tuple[float, list[str]]:
        start = time.perf_counter()
        output = run(lines)
        return time.perf_counter() - start, output

    for _ in sys.stdin:
        seconds, output = timed(lines)
        latency = statistics.median(timed([line])[0] for line in lines[:20])
        usage = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        answer = {"seconds": seconds, "latency": latency, "megabytes": sum(usage) / 1000, "output": output}
        print(json.dumps(answer), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("model", "exports", "source", "reference"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the peers")
    parser.add_argument("--systems", nargs="+", default=[*OURS, *PEERS])
    parser.add_argument("--child")
    arguments = parser.parse_args()
    if arguments.child:
        return child(arguments)
    import sacrebleu
    import sentencepiece

    children: dict[str, Any] = {}
    for system in arguments.systems:
        python = sys.executable if system in OURS else arguments.peer_python
        command = [python, __file__, *sys.argv[1:], "--child", system]
        children[system] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    answers: dict[str, list[dict[str, Any]]] = {system: [] for system in children}
    for _ in range(arguments.rounds):
        for system, process in children.items():
            print("go", file=process.stdin, flush=True)
            answers[system].append(json.loads(process.stdout.readline()))
    for process in children.values():
        process.communicate()
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(arguments.model / "tokenizer.model"))
    reference = arguments.reference.read_text().split("\n")[: arguments.lines]
    peer = next((system for system in answers if system not in OURS), arguments.systems[0])
    base = statistics.median(a["seconds"] for a in answers[peer])
    print(f"| system | lines/s (range) | tokens/s | x {peer} | ms for one line | peak MB | BLEU |")
    print("|--|--|--|--|--|--|--|")
    for system, turns in answers.items():
        seconds = sorted(a["seconds"] for a in turns)
        middle, output = statistics.median(seconds), turns[0]["output"]
        tokens = sum(map(len, tokenizer.encode(output))) + len(output)
        bleu = sacrebleu.corpus_bleu(output, [reference]).score
        span = f"{len(output) / middle:.0f} ({len(output) / seconds[-1]:.0f}-{len(output) / seconds[0]:.0f})"
        latency = 1000 * statistics.median(a["latency"] for a in turns)
        print(f"| {system} | {span} | {tokens / middle:,.0f} | {base / middle:.2f} | {latency:.1f} "
              f"| {turns[-1]['megabytes']:.0f} | {bleu:.2f} |")  # fmt: skip


if __name__ == "__main__":
    main()
