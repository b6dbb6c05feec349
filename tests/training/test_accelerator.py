"""The configuration of `accelerate launch`, and trackers."""

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import accelerate
import pytest
import texts
import torch
from accelerate import tracking
from lab import Lab

from nmt_cli.recipe import schema
from nmt_cli.system.errors import UsageError
from nmt_cli.training import accelerator as accelerator_module


def test_only_the_recipe_configures_accelerate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = list[Any]()

    def accelerator(**options: Any) -> Any:
        made.append(options)
        return SimpleNamespace(is_main_process=False, gradient_accumulation_steps=7)

    monkeypatch.setattr(accelerate, "Accelerator", accelerator)
    monkeypatch.delenv("NMT_PATIENCE_SECONDS", raising=False)
    monkeypatch.setenv("ACCELERATE_GRADIENT_CLIPPING", "1.0")  # only the first process warns about it
    for value in ("false", "0", ""):
        monkeypatch.setenv("ACCELERATE_USE_FSDP", value)
        assert accelerator_module.make_accelerator(schema.Recipe(), tmp_path).gradient_accumulation_steps == 1
    options = made[-1]
    ddp, group = options.pop("kwargs_handlers")
    assert (ddp.broadcast_buffers, ddp.gradient_as_bucket_view) == (False, True)
    assert (group.timeout, group.init_method) == (timedelta(minutes=10), None)
    on_cpu = not torch.cuda.is_available()
    plain = {"mixed_precision": "no", "dynamo_backend": "no", "log_with": None, "project_dir": tmp_path}
    assert options == {"cpu": on_cpu, **plain}
    monkeypatch.setenv("NMT_PATIENCE_SECONDS", "1.5")
    monkeypatch.setenv(accelerator_module.INIT_METHOD, "file:///x")
    accelerator_module.make_accelerator(schema.Recipe(), tmp_path)
    group = made[-1]["kwargs_handlers"][1]
    assert (group.timeout, group.init_method) == (timedelta(seconds=1.5), "file:///x")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("values", "precision", "warnings"),
    [
        (("EAGER", "fp16", "4", "1.0"), "fp32", 4),
        (("EAGER", "bf16", "1", "none"), "fp32", 2),
        (("NO", "bf16", "1", "none"), "auto", 0),
    ],
)
def test_ignored_settings_of_the_launcher_cause_warnings(lab: Lab, values: Any, precision: str, warnings: int) -> None:
    names = ("DYNAMO_BACKEND", "MIXED_PRECISION", "GRADIENT_ACCUMULATION_STEPS", "GRADIENT_CLIPPING")
    for name, value in zip(names, values, strict=True):
        lab.patch.setenv(f"ACCELERATE_{name}", value)
    accelerate.state.AcceleratorState._reset_state(True)
    lab.train(f"training.steps={1 if precision == 'auto' else 10}", f"training.precision={precision}")
    assert accelerate.state.AcceleratorState().dynamo_plugin.backend.value == "NO"
    assert precision == "auto" or lab.same(10)
    assert lab.stderr().count("in the accelerate configuration is ignored") == warnings


@pytest.mark.parametrize(
    ("kind", "value"),
    [("FSDP", "true"), ("DEEPSPEED", "true"), ("MEGATRON_LM", "True"), ("PARALLELISM_CONFIG", "TRUE")],
)
def test_sharded_training_is_refused(lab: Lab, kind: str, value: str) -> None:
    lab.patch.setenv(f"ACCELERATE_USE_{kind}", value)
    with pytest.raises(UsageError, match=f"{kind}, which is not supported.* run accelerate launch --multi_gpu -m"):
        lab.train()


def test_a_configuration_of_accelerate_launch(
    tiny_recipe_file: Path,
    numbers_corpus: Path,
    reference_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],  # also captures other processes, unlike the one in the fixture `lab`
) -> None:
    """The launcher runs in this process, and starts nmt in another one."""
    from accelerate.commands import launch

    lab = Lab(tiny_recipe_file, numbers_corpus, reference_run, tmp_path / "run", monkeypatch, capfd)
    config = lab.run.with_name("config.yaml")
    machine = "compute_environment: LOCAL_MACHINE, num_machines: 1, num_processes: 1, machine_rank: 0, use_cpu: true"
    rest = "distributed_type: 'NO', mixed_precision: fp16, dynamo_config: {dynamo_backend: INDUCTOR}"
    config.write_text(f"{{{machine}, {rest}}}")
    lab.patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    lab.patch.setenv("PYTHONHASHSEED", "1")
    words = [lab.recipe_file, "--data", lab.corpus, "--run", lab.run, "--set", "training.steps=10"]
    words = ["--config_file", config, "-m", "nmt_cli", "train", *words]
    launch.launch_command(launch.launch_command_parser().parse_args([*map(str, words)]))  # raises if nmt fails
    errors = lab.stderr()
    for setting in ("dynamo_backend=inductor", "mixed_precision=fp16"):
        assert f"{setting} in the accelerate configuration" in errors
    assert lab.same(10)


def test_the_environment_of_torch_is_set_before_its_import() -> None:
    names = ["ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY", "TORCHINDUCTOR_MIX_ORDER_REDUCTION"]
    code = f"import os, sys; os.environ.pop('{names[0]}', 0); os.environ.pop('{names[2]}', 0); import nmt_cli; "
    code += f"print(*map(os.environ.get, {names}), 'torch' in sys.modules)"
    done = texts.python("-c", code, LRU_CACHE_CAPACITY="7")
    assert done.stdout == "32 7 0 False\n"  # a value set by the user stays


@pytest.mark.parametrize("name", ["tensorbord", "wandb", "all"])
def test_a_missing_tracker_is_refused(lab: Lab, name: str) -> None:
    lab.patch.setattr(tracking, "get_available_trackers", list)
    with pytest.raises(UsageError, match=f"tracker '{name}' is not installed.*pip install"):
        lab.train(tracker=name)
    assert not lab.run.exists()


def test_a_tracker_gets_recipe_losses_and_validations(lab: Lab) -> None:
    recipe, records = dict[str, Any](), []
    board = accelerate.utils.LoggerType.TENSORBOARD
    lab.patch.setattr(tracking, "get_available_trackers", lambda: [board])
    lab.patch.setattr(accelerate.Accelerator, "init_trackers", lambda _, name, values: recipe.update(values, run=name))
    lab.patch.setattr(accelerate.Accelerator, "log", lambda _, values, step: records.append((step, values)))
    assert lab.train("training.steps=10", "training.validate_every=10", tracker="tensorboard") == 0
    assert (recipe["run"], recipe["training.steps"]) == ("tiny", 10)
    assert all(isinstance(value, int | float | str) for value in recipe.values())
    assert [step for step, _ in records] == [5, 10, 10]
    assert {"nll", "rate", "tgt_tokens_per_second"} <= set(records[0][1])
    assert {"dev_nll", "dev_bleu"} <= set(records[2][1])
