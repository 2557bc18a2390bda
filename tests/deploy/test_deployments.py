"""The deployments are valid: against Kubernetes's schemas, our command line, and each other."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import typer
import yaml
from tests.docs.pages import ROOT

import headrace
from headrace.operate.cli.app import app

DEPLOY: Final = ROOT / "deploy"
MANIFESTS: Final = sorted(DEPLOY.glob("kubernetes/**/*.yaml"))
OF_KEDA: Final = "keda.sh/v1alpha1"
"""A version of resources that Kubernetes itself does not know."""
COMPOSE: Final = DEPLOY / "compose.yaml"
JOB: Final = (DEPLOY / "job.py").read_text()
IMAGE: Final = f"headrace:{headrace.__version__}"


def documents() -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in MANIFESTS:
        for each in yaml.safe_load_all(path.read_text()):
            yield path, each


def pods() -> Iterator[dict[str, Any]]:
    for _, each in documents():
        if "template" in each.get("spec", {}):
            yield each["spec"]["template"]


def containers() -> Iterator[dict[str, Any]]:
    """Those of our image; of Kubernetes and of Compose, in one form."""
    for pod in pods():
        for each in pod["spec"]["containers"]:
            if each["image"].startswith("headrace"):
                names = [variable["name"] for variable in each["env"]]
                yield {"image": each["image"], "command": each["args"], "variables": names}
    for each in yaml.safe_load(COMPOSE.read_text())["services"].values():
        if each["image"].startswith("headrace"):
            yield each | {"variables": list(each["environment"])}


@pytest.mark.parametrize(
    ("path", "manifest"),
    [
        pytest.param(*each, id=f"{each[1]['kind']}-{each[1]['metadata']['name']}")
        for each in documents()
        if each[1]["apiVersion"] != OF_KEDA
    ],
)
def test_a_manifest_is_what_kubernetes_knows(path: Path, manifest: dict[str, Any]) -> None:
    version = kubernetes_validate.latest_version()
    kubernetes_validate.validate(manifest, version, strict=True)
    assert "namespace" not in manifest["metadata"], f"{path}: it is the reader's to choose"


def test_every_command_of_ours_is_one_with_its_options() -> None:
    commands = [each["command"] for each in containers() if each["command"][0] == "headrace"]
    assert commands
    for _, *words in commands:
        command: Any = typer.main.get_command(app)
        context = command.make_context("headrace", ["--help"], resilient_parsing=True)
        given = [word.partition("=")[0] for word in words if word.startswith("--")]
        for name in (word for word in words if not word.startswith("--")):
            command = command.get_command(context, name)
            assert command is not None, name
        known = {option for parameter in command.params for option in parameter.opts}
        assert [option for option in given if option not in known] == []


def test_the_job_finds_each_variable_that_it_reads() -> None:
    needed = set(re.findall(r'environ\["(\w+)"\]', JOB)) - {"JOURNAL"}
    jobs = [each for each in containers() if "job.py" in each["command"]]
    assert len(jobs) == 2
    for each in jobs:
        assert needed <= set(each["variables"])
        assert {"JOURNAL", "BROKERS"} & set(each["variables"])


def test_what_is_named_is_there() -> None:
    assert {each["image"] for each in containers()} == {IMAGE}
    made = {(each["kind"], each["metadata"]["name"]) for _, each in documents()}
    text = "".join(path.read_text() for path in MANIFESTS)
    assert {("Secret", name) for name in re.findall(r"secretKeyRef: {name: ([\w-]+)", text)} <= made
    for _, each in documents():
        labels = each.get("spec", {}).get("selector")
        wanted = labels.get("matchLabels", labels) if isinstance(labels, dict) else None
        assert wanted is None or wanted in [pod["metadata"]["labels"] for pod in pods()]
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    assert {name for each in services.values() for name in each.get("depends_on", {})} <= set(
        services
    )


def test_a_gate_has_one_query_at_a_time() -> None:
    names = {
        each["metadata"]["name"]: each
        for _, each in documents()
        if "replicas" in each.get("spec", {})
    }
    driver = names["headrace-driver"]
    assert driver["spec"]["replicas"] == 1
    assert driver["spec"]["strategy"]["type"] == "Recreate"
