"""How long scoring takes, start-up included: python tests/benchmarks/score_speed.py [LINES]

Made-up lines of 20 words, one word in ten changed; each measurement is a process of its own.
"""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CODE = """
import sys
from pathlib import Path
from nmt_cli.scoring.score import ScoreOptions, score_command
hypothesis, reference, *metrics = sys.argv[1:]
options = ScoreOptions(Path(hypothesis), (Path(reference),), metrics=tuple(metrics), language="de")
sys.exit(score_command(options))
"""


def main(count: int) -> None:
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyzäöü-", k=rng.randint(2, 12))) for _ in range(5000)]
    reference = [[rng.choice(words) for _ in range(20)] for _ in range(count)]
    hypothesis = [[word if rng.random() > 0.1 else rng.choice(words) for word in line] for line in reference]
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, lines in (("hypothesis", hypothesis), ("reference", reference)):
            paths.append(str(Path(folder, name)))
            Path(paths[-1]).write_text("".join(" ".join(line) + ".\n" for line in lines), encoding="utf-8")
        for metrics in (["bleu"], ["bleu", "chrf"], ["paper-bleu"], ["bleu", "chrf", "ter", "paper-bleu"]):
            seconds = []
            for _ in range(5):
                start = time.perf_counter()
                subprocess.run([sys.executable, "-c", CODE, *paths, *metrics], check=True, stdout=subprocess.DEVNULL)
                seconds.append(time.perf_counter() - start)
            print(f"{' + '.join(metrics):<32} {min(seconds):.2f} s (best of 5), {max(seconds):.2f} s (worst)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3003)
