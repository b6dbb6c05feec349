"""Translate files by datatrove's executors, here under Slurm.

    pip install "nmt-cli[datatrove]"
    python recipes/cluster/datatrove_translate.py
    nmt translate text/ --check out && nmt translate text/ --join out    # once all tasks have ended

Edit the upper lines, and the partition and the time of the executor. The same command repeats the tasks that failed.
"""

from pathlib import Path

from datatrove.executor.slurm import SlurmPipelineExecutor

from nmt_cli.translation.datatrove_step import TranslateFiles
from nmt_cli.translation.translate import TranslateOptions

FILES, OUT = ["text/"], "out"  # on a file system that all machines see, or URLs
OPTIONS = TranslateOptions(models=(Path("models/en-de"),))

if __name__ == "__main__":
    SlurmPipelineExecutor(
        pipeline=[TranslateFiles(FILES, OUT, OPTIONS)],
        tasks=100,
        cpus_per_task=16,
        partition="cpu",
        time="20:00:00",
        logging_dir="logs/translate",
    ).run()
