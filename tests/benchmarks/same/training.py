"""Weights of runs of 60 steps in one and two processes, of resumed and fine-tuned runs, and of averaged checkpoints."""

import json
import shutil
from collections.abc import Callable

from same import digests
from same.tree import FEW, INPUTS, MODEL, TOY, Finished, Tree, settings

STEPS = settings("training.steps=60", "training.validate_every=30", "training.validate_bleu=20")
RESUMABLE = settings("training.cooldown_steps=0")  # so that learning rates do not depend on training.steps
ONE, TWO = settings("training.processes=1"), settings("training.processes=2")
OTHER_SHAPE = settings("model.dropout=0.1", "model.norm=post", "model.encoder_layers=1", "model.activation=gelu",
    "model.attention_bias=yes", "training.precision=fp32", "training.micro_batches=3", "training.seed=7")  # fmt: skip
HALF = "runs/half"  # a run that stops at step 30; the old tree also makes one for both trees


def trained(tree: Tree, run: str, done: Finished) -> dict[str, object]:
    """Return the last weights, all checkpoints and the metrics of a run; raise RuntimeError if it failed."""
    folder = tree.folder / run
    if done.code:
        raise RuntimeError(f"training ended with {done.code}: {done.stderr[-300:]}")
    checkpoints = {
        path.parent.name: digests.tensors(path) for path in sorted(folder.glob("checkpoints/*/*.safetensors"))
    }
    return {
        "model": digests.model(folder / "model"),
        "checkpoints": checkpoints,
        "metrics": digests.metrics(folder / "metrics.jsonl"),
        "recipe": (folder / "recipe.yaml").read_text("utf-8").split("\n"),
    }


def train(tree: Tree, run: str, *options: str) -> dict[str, object]:
    done = tree.nmt("train", tree.recipe("toy"), "--data", TOY, "--run-dir", run, *STEPS, *options)
    return trained(tree, run, done)


def launched(tree: Tree, run: str, *launcher: str) -> dict[str, object]:
    command = [*launcher, "-m", "nmt_cli", "train", tree.recipe("toy"), "--data", TOY, "--run-dir", run, *STEPS]
    env = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    return trained(tree, run, tree.python("-m", *command, env=env))


def one_process(tree: Tree) -> object:
    return train(tree, "runs/one", *ONE)


def own_model(tree: Tree) -> object:
    """Average the tree's own run, and translate with the result."""
    averaged = tree.nmt("average-checkpoints", "runs/one", "--data", TOY, "--last", 2)
    translated = tree.nmt("translate", "--model", "runs/one/model", "-i", FEW)
    return {"exit code": averaged.code, "model": digests.model(tree.folder / "runs/one/model")} | translated.result


def two_processes(tree: Tree) -> object:
    return train(tree, "runs/two", *TWO)


def torchrun(tree: Tree) -> object:
    return launched(tree, "runs/torchrun", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")


def accelerate_launch(tree: Tree) -> object:
    # With all of these options, accelerate asks no questions and leaves the options of `nmt train` alone.
    options = "--cpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"
    return launched(tree, "runs/accelerate", "accelerate.commands.launch", *options)


def other_shape(tree: Tree) -> object:
    """Train with settings that the toy recipe does not use: dropout, post-norm, biases, fp32."""
    return train(tree, "runs/shape", *OTHER_SHAPE, *settings("training.steps=20"))


def resumed(tree: Tree) -> object:
    """Stop at step 30, and resume with another number of processes."""
    first = train(tree, HALF, *RESUMABLE, *ONE, *settings("training.steps=30"))
    return {"first": first, "whole": train(tree, HALF, *RESUMABLE, *TWO)}


def resumed_from_old(tree: Tree) -> object:
    """Resume a copy of the run that the old tree began."""
    shutil.copytree(tree.folder / INPUTS / HALF, tree.folder / "runs/begun", dirs_exist_ok=True)
    return train(tree, "runs/begun", *RESUMABLE, *ONE)


def begin_run(inputs: Tree) -> None:
    """Let the old tree begin the run that both trees resume."""
    inputs.must("train", inputs.recipe("toy"), "--data", "data/toy-en-de", "--run-dir", HALF, "-q", *STEPS,
        *RESUMABLE, *ONE, *settings("training.steps=30"))  # fmt: skip


def fine_tuned(tree: Tree) -> object:
    """Run the fine-tuning recipe: held-out text, a start from the old tree's model, and a table of before and after."""
    files = {"train_src": TOY / "dev.src", "train_tgt": TOY / "dev.tgt"}
    files |= {"mix_src": INPUTS / "lines", "mix_tgt": INPUTS / "prefixes"}
    changes = [f"corpus.{key}=[{name}]" for key, name in files.items()]
    changes += [f"corpus.test_src={TOY / 'test.src'}", f"corpus.test_tgt={TOY / 'test.tgt'}"]
    changes += [f"training.init_from={MODEL}", "training.steps=20", "training.validate_every=10"]
    changes += ["training.checkpoint_every=10", "training.validate_bleu=20", "averaging.with_start=[0, 0.5]"]
    done = tree.nmt("reproduce", tree.recipe("finetune"), "--workers", 1, *settings(*changes, "corpus.hold_out=50"))
    result = trained(tree, "runs/finetune", done)
    translations = tree.folder / "runs/finetune/test.hyp"
    return {**result, "translations": translations.read_text("utf-8").split("\n") if translations.is_file() else None}


def averaged(tree: Tree) -> object:
    """Average the old tree's checkpoints in three ways."""
    found: dict[str, object] = {}
    for name, options in {"recipe": [], "last 1": ["--last", 1], "last 2": ["--last", 2]}.items():
        out = f"averaged/{name.replace(' ', '-')}"
        done = tree.nmt("average-checkpoints", INPUTS / "runs/toy", "--data", TOY, "--out", out, *options)
        manifest = json.loads((tree.folder / out / "manifest.json").read_text("utf-8")) if not done.code else {}
        steps = manifest.get("steps")
        found[name] = {"exit code": done.code, "steps": steps, "model": digests.model(tree.folder / out)}
    return found


CHECKS: dict[str, Callable[[Tree], object]] = {
    "60 steps, one process": one_process,
    "the average of that run, and its translations": own_model,
    "60 steps, two processes": two_processes,
    "60 steps, torchrun": torchrun,
    "60 steps, accelerate launch": accelerate_launch,
    "20 steps, another shape": other_shape,
    "30 steps, resumed to 60": resumed,
    "resumed from the old tree's run": resumed_from_old,
    "fine-tuned from the old tree's model": fine_tuned,
    "averaged checkpoints": averaged,
}
