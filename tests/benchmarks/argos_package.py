"""Compare nmt with argostranslate on the same Argos package: translations, scores and BLEU.

    PYTHONPATH=. python tests/benchmarks/argos_package.py en_de.argosmodel test.en --references test.de \
        --argos PYTHON [--lines 500] [--precision int8]

PYTHON belongs to an environment with `pip install argostranslate`. Its sentence splitter is off because it needs a
download, so the file should have one sentence per line. The script compares

- nmt with CTranslate2 on the package's tokens and model, both without a length penalty. In float32, their translations
  must be equal.
- nmt with argostranslate, which divides scores by length ^ 0.2 and ends a search as soon as the number of finished
  hypotheses reaches the beam size. Of the lines that differ, the script counts those where nmt's translation has the
  higher score by argostranslate's formula, computed with the probabilities of nmt's model.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import sacrebleu

from nmt_cli import Translator

ARGOS = """
import json, sys
from pathlib import Path
from argostranslate import package, sbd, settings, translate
sbd.MiniSBDSentencizer.split_sentences = lambda self, text: [text]
settings.inter_threads = settings.intra_threads = 1
settings.compute_type = sys.argv[2]
package.install_from_path(Path(sys.argv[1]))
[one] = package.get_installed_packages()
[codes] = [(one.from_code, one.to_code)]
found = translate.get_translation_from_codes(*codes)
lines = json.load(sys.stdin)
whole = [found.translate(line) for line in lines]
translator = found.underlying.translator
results = translator.translate_batch(
    [one.tokenizer.encode(line) for line in lines], beam_size=4, length_penalty=0, max_batch_size=1024,
    batch_type="tokens",
)
json.dump([whole, [one.tokenizer.decode(each.hypotheses[0]).removeprefix(" ") for each in results]], sys.stdout)
"""
OPTIONS = {"beam": 4, "split": False, "copy_wordless": False, "case": "off", "spelling": "off"}


def by_argos(python: str, package: Path, precision: str, lines: list[str], home: str) -> list[list[str]]:
    """Return the translations of argostranslate, and those of CTranslate2 without a length penalty."""
    environment = {"HOME": home, "XDG_DATA_HOME": f"{home}/data", "XDG_CACHE_HOME": f"{home}/cache", "PATH": "/usr/bin"}
    command = [python, "-c", ARGOS, str(package), {"fp32": "float32"}.get(precision, precision)]
    done = subprocess.run(command, input=json.dumps(lines), env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def normalized_scores(translator: Translator, sources: Sequence[str], translations: Sequence[str]) -> list[float]:
    scored = translator.score(zip(sources, translations, strict=True))
    return [each.log_probability / len(each.tokens) ** 0.2 for each in scored]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--references", type=Path, required=True)
    parser.add_argument("--argos", required=True)
    parser.add_argument("--lines", type=int, default=500)
    parser.add_argument("--precision", default="fp32")
    given = parser.parse_args()
    lines, references = (file.read_text().split("\n")[: given.lines] for file in (given.source, given.references))
    with tempfile.TemporaryDirectory() as home:
        argos, plain = by_argos(given.argos, given.package.resolve(), given.precision, lines, home)
        model = Path(home) / "model"
        subprocess.run([sys.executable, "-m", "nmt_cli", "import", str(given.package), "--out", str(model)], check=True)
        with Translator(model, precision=given.precision) as translator:
            ours_plain = [each.text for each in translator.translate(lines, alpha=0.0, **OPTIONS)]
            ours = [each.text for each in translator.translate(lines, **OPTIONS)]
            defaults = [each.text for each in translator.translate(lines)]
            differ = [index for index in range(len(lines)) if ours[index] != argos[index]]
            sources = [lines[index] for index in differ]
            sides = [[side[index] for index in differ] for side in (ours, argos)]
            scores = [normalized_scores(translator, sources, side) for side in sides]
    equal = sum(one == other for one, other in zip(ours_plain, plain, strict=True))
    higher = sum(mine > theirs for mine, theirs in zip(*scores, strict=True))
    print(f"without a length penalty: {equal} of {len(lines)} translations equal those of CTranslate2")
    print(
        f"with it: {len(lines) - len(differ)} equal argostranslate's; "
        f"nmt's score is higher for {higher} of {len(differ)} others"
    )
    for name, texts in (
        ("nmt", defaults),
        ("nmt, one search per line, case unchanged", ours),
        ("argostranslate", argos),
        ("nmt without a length penalty", ours_plain),
        ("CTranslate2 without a length penalty", plain),
    ):
        print(f"BLEU {sacrebleu.corpus_bleu(texts, [references]).score:.2f}  {name}")


if __name__ == "__main__":
    main()
