"""Broken runs of a tiny real model: its files, its hub, its memory. Each takes some seconds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.support.faults.lab import FAKE_SSH, Lab, remote
from tests.support.faults.run_kinds import small_disk
from tests.support.hub import Hub, serve_hub
from tests.support.hub_faults import Fault
from tests.support.tiny import tiny_checkpoint
from tests.support.tokenizers import byte_tokenizer

REPO = "org/tiny"
WEIGHTS = "model.safetensors"


def model(lab: Lab) -> Path:
    """Write a tiny model of six layers."""
    folder = tiny_checkpoint(lab.folder / "tiny", "llama", vocab_size=300)
    byte_tokenizer().save_pretrained(folder)
    return folder


def serve(
    lab: Lab,
    hosts: list[str],
    model_id: str | Path,
    env: Mapping[str, str] | None = None,
    ssh: Path = FAKE_SSH,
    cwd: Path | None = None,
) -> Path:
    """Run the model, every stage an even share, with a cache of the lab's own."""
    clean = {
        "HF_HOME": str(lab.folder / "hf"),
        "HF_TOKEN": "",
        "HF_HUB_OFFLINE": "0",
        **(env or {}),
    }
    words = ("--even-split", "--raw", "--model-id", str(model_id))
    return lab.run(hosts, *words, stub=False, env=clean, ssh=ssh, cwd=cwd)


def even_split_model(lab: Lab) -> Path:
    return serve(lab, ["local", "local"], model(lab))


def torch_missing(lab: Lab) -> Path:
    return serve(lab, ["local", "local python=/usr/bin/python3"], model(lab))


def memory_refused(lab: Lab) -> Path:
    return serve(lab, ["local", "local memory=1MiB"], model(lab))


def model_folder_missing(lab: Lab) -> Path:
    return with_harmed_copy(lab, shutil.rmtree)


def architecture_unknown(lab: Lab) -> Path:
    def harm(folder: Path) -> None:
        config = folder / "config.json"
        config.write_text(config.read_text().replace('"llama"', '"lamarck"'))

    return with_harmed_copy(lab, harm)


def weights_truncated(lab: Lab) -> Path:
    def harm(folder: Path) -> None:
        os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size - 100)

    return with_harmed_copy(lab, harm)


def lfs_pointer(lab: Lab) -> Path:
    def harm(folder: Path) -> None:
        (folder / WEIGHTS).write_text(
            "version https://git-lfs.github.com/spec/v1\n"
            f"oid sha256:{'0' * 64}\nsize {(folder / WEIGHTS).stat().st_size}\n"
        )

    return with_harmed_copy(lab, harm)


def with_harmed_copy(lab: Lab, harm: Callable[[Path], None]) -> Path:
    """Run stage 1 on a host whose own copy of the model is harmed."""
    whole = model(lab)
    for host in ("alpha", "beta"):
        (lab.folder / host).mkdir()
        shutil.copytree(whole, lab.folder / host / "model")
    harm(lab.folder / "beta" / "model")
    ssh = lab.folder / "ssh.sh"
    ssh.write_text(f'#!/bin/sh\ncd {lab.folder}/beta\nexec {FAKE_SSH} "$@"\n')
    ssh.chmod(0o755)
    hosts = ["local", remote("beta")]
    return serve(lab, hosts, "./model", ssh=ssh, cwd=lab.folder / "alpha")


def not_finite(lab: Lab) -> Path:
    folder = model(lab)
    tensors = load_file(folder / WEIGHTS)
    name = "model.layers.4.mlp.down_proj.weight"
    tensors[name] = torch.full_like(tensors[name], float("nan"))
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    return serve(lab, ["local", "local"], folder)


def hub(lab: Lab) -> Hub:
    """Serve the model from a hub of the lab's own."""
    return lab.stack.enter_context(serve_hub(Hub({REPO: model(lab)})))


def hub_refuses(lab: Lab) -> Path:
    served = hub(lab)
    served.refusals[REPO] = (401, "")
    return serve(lab, ["local"], REPO, {"HF_ENDPOINT": served.endpoint})


def hub_has_no_model(lab: Lab) -> Path:
    served = hub(lab)
    return serve(lab, ["local"], "org/nothing", {"HF_ENDPOINT": served.endpoint})


def hub_down(lab: Lab) -> Path:
    return serve(lab, ["local"], REPO, {"HF_ENDPOINT": "http://127.0.0.1:9"})


def cache_disk_full(lab: Lab) -> Path:
    served = hub(lab)
    disk = small_disk(lab, 200_000)
    env = {"HF_ENDPOINT": served.endpoint, "STAGELINE_CACHE": str(disk)}
    return serve(lab, ["local"], REPO, env)


def cache_damaged(lab: Lab) -> Path:
    """What is in the cache is cut, and the hub cannot give it anew."""

    def harm(part: Path) -> None:
        os.truncate(part, part.stat().st_size - 100)

    return with_harmed_cache(lab, harm)


def cache_rotten(lab: Lab) -> Path:
    """Bytes in the cache have changed: only a checksum of all of it would tell beforehand."""

    def harm(part: Path) -> None:
        with part.open("r+b") as file:
            file.seek(-60, os.SEEK_END)
            file.write(b"\xff" * 50)

    return with_harmed_cache(lab, harm)


def with_harmed_cache(lab: Lab, harm: Callable[[Path], None]) -> Path:
    """Fill a cache, harm every file of weights in it, and run again without the hub's."""
    served = hub(lab)
    env = {"HF_ENDPOINT": served.endpoint, "STAGELINE_CACHE": str(lab.folder / "cache")}
    serve(lab, ["local"], REPO, env)
    for part in (lab.folder / "cache").rglob("*.safetensors"):
        harm(part)
    served.faults.add(Fault(file=WEIGHTS, status=404, times=None))
    return serve(lab, ["local"], REPO, env)
