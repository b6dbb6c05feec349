"""The files of recipes/cluster agree with the program: options, routes, metrics, variables and timeouts."""

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from texts import ROOT
from tiny_model import make_model

from nmt_cli.commands.app import app
from nmt_cli.commands.options import DATABASE_VARIABLE
from nmt_cli.system.errors import DataError, DivergedError, MissingError, OutputError, UsageError
from nmt_cli.system.shard import Shard, parse

pytest.importorskip("starlette")
from serving import client_of, server

from nmt_cli.serving.server import ServeOptions

CLUSTER = ROOT / "recipes/cluster"
MANIFESTS = ["kubernetes.yml", "serve.yml", "translate.yml"]


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((CLUSTER / name).read_text()))


def options_of(words: list[str]) -> dict[str, Any]:
    """Return the values of a command line's options; raise an error for an unknown one."""
    group: Any = typer.main.get_command(app)
    return dict(group.commands[words[0]].make_context(words[0], words[1:]).params)


def instructions() -> dict[str, str]:
    """Return the last instruction of each kind in the Dockerfile."""
    text = (CLUSTER / "Dockerfile").read_text().replace("\\\n", " ")
    return dict(line.split(" ", 1) for line in text.split("\n") if line and not line.startswith("#"))


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_match_the_schemas_of_kubernetes(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for document in documents(name):
        if document["apiVersion"].split("/")[0] != "monitoring.coreos.com":  # a resource of the Prometheus operator
            validate.validate(document, "1.33", strict=True)


def test_the_deployment_serves_what_its_probes_service_and_autoscaler_expect(tmp_path: Path) -> None:
    by_kind = {each["kind"]: each for each in documents("serve.yml")}
    deployment = by_kind["Deployment"]["spec"]
    pod = deployment["template"]["spec"]
    [container] = pod["containers"]
    arguments = options_of(container["args"])
    assert arguments["models"] == ("/models",)
    assert str(arguments["api_key_file"]).startswith("/keys/")
    labels = deployment["template"]["metadata"]["labels"]
    selectors = [by_kind[kind]["spec"]["selector"] for kind in ("PodMonitor", "PodDisruptionBudget")]
    assert {labels["app"]} == {each["matchLabels"]["app"] for each in [*selectors, deployment["selector"]]}
    assert by_kind["Service"]["spec"]["selector"] == labels
    [port] = container["ports"]
    assert port["containerPort"] == ServeOptions(()).port
    assert {env["name"] for env in container["env"]} == {DATABASE_VARIABLE}
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= pause + ServeOptions(()).timeout + 5
    scaler = by_kind["HorizontalPodAutoscaler"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == by_kind["Deployment"]["metadata"]["name"]
    [metric] = scaler["metrics"]
    with client_of(make_model(tmp_path), keys=[b"secret" * 9]) as client:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert client.get(container[probe]["httpGet"]["path"]).status_code == 200, "probes have no key"
        assert client.get("/metrics").status_code == 400
        page = client.get("/metrics", headers={"Authorization": f"Bearer {'secret' * 9}"}).text
    assert re.search(rf"^{metric['pods']['metric']['name']} 0\.0$", page, re.MULTILINE)


def test_the_job_fails_for_good_only_where_no_retry_helps() -> None:
    [job] = documents("translate.yml")
    [container] = job["spec"]["template"]["spec"]["containers"]
    values = options_of(container["args"])
    assert parse(values["shard"], {"JOB_COMPLETION_INDEX": "99"}) == Shard(100, 100)
    assert job["spec"]["completions"] == 100
    rules = job["spec"]["podFailurePolicy"]["rules"]
    codes = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule}
    final = sorted(error.exit_code for error in (UsageError, DataError, MissingError, OutputError))
    assert codes == {"FailJob": final, "FailIndex": [DivergedError.exit_code]}


def test_the_image_and_the_compose_file_start_a_server() -> None:
    image = instructions()
    assert options_of(json.loads(image["CMD"]))["models"] == ("/models",)
    assert json.loads(image["ENTRYPOINT"]) == ["nmt"]
    variables = dict(word.split("=", 1) for word in shlex.split(image["ENV"]))
    assert Path(variables[DATABASE_VARIABLE]).parent == Path("/state")
    assert int(image["EXPOSE"]) == ServeOptions(()).port
    [compose] = documents("compose.yml")
    nmt, caddy = compose["services"]["nmt"], compose["services"]["caddy"]
    words = [re.sub(r"\$\{DOMAIN:.*\}", "a.example", word) for word in nmt["command"]]
    assert options_of(words)["allow_host"] == ("a.example",)
    assert int(nmt["stop_grace_period"].removesuffix("s")) >= ServeOptions(()).timeout + 5
    targets = [volume.removesuffix(":ro").rpartition(":")[2] for volume in nmt["volumes"]]
    assert targets == json.loads(image["VOLUME"])
    build = CLUSTER / nmt["build"]["context"]
    assert (build / nmt["build"]["dockerfile"]).exists()
    assert (CLUSTER / caddy["volumes"][0].split(":")[0]).exists()
    sent = (CLUSTER / "Dockerfile.dockerignore").read_text().split("\n")
    assert all((build / line[1:]).exists() for line in sent if line.startswith("!"))


def test_caddy_serves_https_in_front_of_nmt(tmp_path: Path) -> None:
    """For localhost, Caddy signs its certificate itself. The URLs of translated files begin with https://."""
    if not shutil.which("caddy"):
        pytest.skip("caddy is not installed")
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        domain = f"localhost:{free.getsockname()[1]}"
    settings = "{\nskip_install_trust\nauto_https disable_redirects\nadmin off\n}\n"
    (tmp_path / "Caddyfile").write_text(settings + (CLUSTER / "Caddyfile").read_text())
    with server(str(make_model(tmp_path)), "--allow-host", "localhost") as (_, address):
        environment = {**os.environ, "DOMAIN": domain, "NMT": address.removeprefix("http://")}
        environment |= {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
        command = ["caddy", "run", "--config", tmp_path / "Caddyfile", "--adapter", "caddyfile"]
        caddy = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            authority = tmp_path / "caddy/pki/authorities/local/root.crt"
            while not authority.exists():
                assert caddy.poll() is None
                time.sleep(0.1)

            def send(path: str, *options: str) -> bytes:
                done = ["curl", "-sS", "--retry", "9", "--retry-all-errors", "--cacert", authority, *options]
                return subprocess.run([*done, f"https://{domain}{path}"], check=True, capture_output=True).stdout

            page = json.loads(send("/translate", "-d", "q=der Hund", "-d", "source=en", "-d", "target=de"))
            (tmp_path / "a.txt").write_text("der Hund\n")
            fields = ["-F", f"file=@{tmp_path}/a.txt", "-F", "source=en", "-F", "target=de"]
            url = json.loads(send("/translate_file", *fields))["translatedFileUrl"]
            assert url.startswith(f"https://{domain}/download_file/")
            assert send(url.removeprefix(f"https://{domain}")).decode() == page["translatedText"] + "\n"
        finally:
            caddy.kill()
            caddy.wait()
