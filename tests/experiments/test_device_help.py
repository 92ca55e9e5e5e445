"""What the help says of device= is what the verb takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npmp.experiments import help as npmp_help
from npmp.experiments.cli import VERBS

ROOT = Path(npmp_help.__file__).parents[2]
ON_CUDA = {"imitate", "reuse", "evaluate", "suite", "bench", "render"}


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_device_is_true(verb: str) -> None:
    (said,) = re.findall(
        r"^device: cpu  # (.*)$", (ROOT / "conf" / f"{verb}.yaml").read_text(), re.MULTILINE
    )
    refuses = (
        'devices=("cpu",)'
        in (ROOT / f"{npmp_help.module_of(verb).replace('.', '/')}.py").read_text()
    )
    assert ("cuda or cuda:N" in said) == (verb in ON_CUDA)
    assert not (refuses and verb in ON_CUDA)
    assert refuses or verb in ON_CUDA or said == "taken by every verb; nothing is computed there"


def test_the_help_of_npmp_names_the_verbs_that_take_cuda() -> None:
    (line,) = [
        line
        for line in npmp_help.overview(VERBS).splitlines()
        if line.strip().startswith("device=")
    ]
    assert set(re.findall(r"[a-z]+", line)) & set(VERBS) == ON_CUDA
