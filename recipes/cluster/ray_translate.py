"""Translate files by actors of Ray Data, each of which holds a Translator.

    pip install "nmt-cli" "ray[data]"
    ray job submit --working-dir . -- python recipes/cluster/ray_translate.py    # or without `ray job submit`
    nmt translate text/ --check out && nmt translate text/ --join out

Edit the upper lines. Ray may lose, repeat or reorder units: each is stored once, and --check proves that all are there.
"""

from pathlib import Path
from typing import Any

import ray

from nmt_cli.sharding import inputs
from nmt_cli.translation.sharded import ShardedTranslation
from nmt_cli.translation.translate import TranslateOptions

FILES, OUT = ["text/"], "out"  # absolute paths on a file system that all machines see, or URLs
CORES, ACTORS = 16, (1, 100)
OPTIONS = TranslateOptions(models=(Path("models/en-de"),), workers=CORES)


class Translate:
    def __init__(self) -> None:
        self.translation = ShardedTranslation(inputs.find(FILES), OUT, OPTIONS)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"unit": row["id"], "failure": self.translation.translate(int(row["id"]))}


if __name__ == "__main__":
    with ShardedTranslation(inputs.find(FILES), OUT, OPTIONS) as translation:
        units = ray.data.range(translation.units, override_num_blocks=translation.units)
    done = units.map(Translate, concurrency=ACTORS, num_cpus=CORES)
    failed = [row for row in done.iter_rows() if row["failure"]]
    print(f"{len(failed)} units failed: {failed[:10]}")
