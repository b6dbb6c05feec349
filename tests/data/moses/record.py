"""Record what the Perl programs of the Moses project print, as golden files for tests/test_paper_bleu.py.

    python tests/data/moses/record.py MOSES CORPORA

MOSES is a checkout of moses-smt/mosesdecoder from 2017 (before pull request 204, November 2018); CORPORA holds
wmt14-mini. The lines are made up here; of real text only hashes and counts of the output are kept.
"""

import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
COMPOUNDS = ["perl", "-ple", r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"]
WORDS = {
    "de": "Haus Straße über fährt Äpfel Müller-Meier Kfz-Werkstatt 1. 31. z.B. Dr. Nr. bzw. usw. u.a. Mio. XIV. "
    "geht's ca. Str. und E-Mail-Adresse a-b-c é-ü-ö Ü-Ei 3. Prof. d.h. sog. v. a.D. 12.30 Okt.",
    "en": "house it's don't 1990's '90s Mr. No. Nos. Art. pp. e.g. i.e. U.S. U.K. Inc. rock'n'roll o'clock James' "
    "twenty-one a-b-c Jan. Sept. St. vs. v. the quick 5'10 Rs. p.m. Ph.D. etc. co-op well",
    "fr": "maison l'homme aujourd'hui qu'il d'été J.-C. c.-à-d. M. MM. Mme p.ex. art. chap. fig. env. etc. tél. "
    "peut-être 1er a-t-il S.A. n° cœur œuvre à où l'« d'un» S'il n'y vol. av. presqu'île",
}
SHARED = (
    "1,000.50 3,5 1,2,3 ,5 5, A,B,C 10% 5°C $5 20€ &amp; &quot; &lt;b&gt; &#124; <i>x</i> [1] a|b ... .. ..... "
    "?! !.. http://ex.org/a?b=1&c=2, info@ex.org #tag @at C++ 100.000,00 2-3 - -- – — x/y ½ ² Ⅷ ٣ हिन्दी 中文。次、 "
    "，１２３ （a） 😀 👍🏽 naïve i\u0307 \u200bz \ufeffb so\u00adft \u00a0 10\u00a0000 \u202f! \u2009 a\u3000b "
    "a\u2028b c\u0085d e\rf g\x0bh i\x1cj \x01 \x7f ' '' ` `x' \" ' . , : ; ( ) \\ ~ ^ ... .' .\" … ∶ ～"
)
QUOTES = "„{}“|“{}”|‚{}‘|«\u00a0{}\u00a0»|»{}«|\"{}\"|'{}'|({})|‹{}›|’{}’|{}|{}|{}|{}"
ENDINGS = ".|.|.|!|?|...|…|.“|.\"|.'| .||:|.)| !|\u202f?|Nr.| 5.| z.B."


def make_line(rng: random.Random, language: str) -> str:
    """Return a made-up line, full of what tokenizers stumble over."""
    words = WORDS[language].split() * 2 + SHARED.split(" ")
    parts = [rng.choice(QUOTES.split("|")).format(rng.choice(words)) for _ in range(rng.choice((0, 1, 2, 4, 6, 9)))]
    return rng.choice((" ", " ", " ", "", "  ")).join(parts) + rng.choice(ENDINGS.split("|"))


def run(command: list[str], lines: list[str]) -> list[str]:
    data = "".join(f"{line}\n" for line in lines).encode()
    output = subprocess.run(command, input=data, capture_output=True, check=True).stdout.decode()
    return output.split("\n")[:-1]


def pipeline(moses: Path, lines: list[str], language: str) -> tuple[list[str], list[str], list[str]]:
    """Return what each step of Perl prints: punctuation, tokens, compounds split."""
    scripts = moses / "scripts" / "tokenizer"
    punctuation = run(["perl", str(scripts / "replace-unicode-punctuation.perl")], lines)
    tokens = run(["perl", str(scripts / "tokenizer.perl"), "-q", "-l", language], punctuation)
    return punctuation, tokens, run(COMPOUNDS, tokens)


def multi_bleu(moses: Path, folder: Path, hypotheses: list[str], references: list[list[str]]) -> str:
    """Return the line multi-bleu.perl prints; "" where it divides by zero."""
    folder.mkdir()
    for i, lines in enumerate(references):
        (folder / f"ref{i}").write_bytes("".join(f"{line}\n" for line in lines).encode())
    command = ["perl", str(moses / "scripts" / "generic" / "multi-bleu.perl"), str(folder / "ref")]
    data = "".join(f"{line}\n" for line in hypotheses).encode()
    return subprocess.run(command, input=data, capture_output=True, check=False).stdout.decode().strip()


def thin(lines: list[str]) -> list[str]:
    """Return hypotheses for real text: the line without some of its words."""
    return [" ".join(w for j, w in enumerate(line.split(" ")) if (i * 7 + j * 3) % 11) for i, line in enumerate(lines)]


def real_text(corpora: Path) -> dict[str, tuple[str, list[str]]]:
    """Return language and lines of each side of the test and training sets."""
    import pyarrow.parquet as parquet

    texts = {}
    for pair in ("de-en", "fr-en"):
        for split in ("train", "validation", "test"):
            files = sorted((corpora / "wmt14-mini" / pair).glob(f"{split}-*.parquet"))
            rows = [row for file in files for row in parquet.read_table(file)["translation"].to_pylist()]
            for language in pair.split("-"):
                texts[f"{pair}/{split}.{language}"] = (language, [row[language] for row in rows])
    return texts


def digest(lines: list[str]) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def main(moses: Path, corpora: Path, scratch: Path) -> None:
    if "split last words" in (moses / "scripts" / "tokenizer" / "tokenizer.perl").read_text(errors="replace"):
        sys.exit("this tokenizer.perl is younger than the paper: check out a commit from 2017")
    rng = random.Random(17)
    with (HERE / "steps.jsonl").open("w") as file:
        for language in ("de", "en", "fr"):
            lines = [make_line(rng, language) for _ in range(400 if language == "de" else 300)]
            for row in zip(lines, *pipeline(moses, lines, language), strict=True):
                file.write(json.dumps([language, *row]) + "\n")
    words = ["a", "b", "c", "ä", "\u00a0", "\u2028x", "d", "B", "##AT##-##AT##"]
    with (HERE / "multi_bleu.jsonl").open("w") as file:
        for i in range(50):
            size = rng.choice((1, 2, 5, 12))
            refs = [
                [" ".join(rng.choices(words, k=rng.choice((0, 1, 4, 9)))) for _ in range(size)]
                for _ in range(rng.choice((1, 1, 2, 3)))
            ]
            hyps = [
                " ".join(w if rng.random() < 0.8 else rng.choice(words) for w in line.split(" ")) for line in refs[0]
            ]
            file.write(json.dumps([hyps, refs, multi_bleu(moses, scratch / str(i), hyps, refs)]) + "\n")
    facts = {}
    for name, (language, lines) in real_text(corpora).items():
        last = 2 if language == "de" else 1
        reference = pipeline(moses, lines, language)[last]
        facts[name] = {"lines": len(lines), "sha256": digest(reference)}
        if "train" not in name:
            hypothesis = pipeline(moses, thin(lines), language)[last]
            facts[name]["multi_bleu"] = multi_bleu(moses, scratch / name.replace("/", "-"), hypothesis, [reference])
    (HERE / "real_text.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]), Path(directory))
