"""What the shells complete."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from npmp.experiments import cli, completion
from npmp.experiments.help import CONF, of_file

ROOT = Path(__file__).resolve().parents[2]
NPMP = shlex.join(["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "npmp.experiments.cli"])


def test_what_may_follow() -> None:
    expected = {
        "npmp re": ["retarget", "reuse", "render"],
        "npmp help exp": ["export"],
        "npmp completion f": ["fish"],
        "npmp reuse evaluation.r": ["evaluation.robots="],
        "npmp reuse task=walk,d": ["dribble"],
        "npmp reuse algo=vmpo algo.crit": ["algo.critic_hidden="],
        "npmp evaluate policy=op3": ["op3_walk"],
        "npmp retarget robot=op": ["op3"],
        "npmp modules show op": ["op3_cmu"],
        "npmp reuse joint_space=": ["true", "false"],
        "npmp reuse seed=1 se": [],  # it is there already
        "npmp imitate data=": [],  # a file
        "npmp nothing ": [],
    }
    assert {line: completion.words(line, cli.VERBS) for line in expected} == expected


def test_every_action_is_listed() -> None:
    """By the comment of its key, which begins with all of them."""
    for verb in cli.VERBS:
        for key in of_file(CONF / f"{verb}.yaml").keys:
            if key.name in ("action", "what"):
                words = completion.words(f"npmp {verb} ", cli.VERBS)
                assert "=" not in words[0] and "=" not in words[1], verb
                assert key.value in (*words, "???"), verb


def test_an_unknown_shell_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "csh"]) == 2
    assert "there are: bash, zsh, fish" in capsys.readouterr().err


def in_shell(shell: str, script: str) -> list[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    done = subprocess.run(
        [shell, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes() -> None:
    """As readline calls it; "=" parts words there."""
    function = f'npmp() {{ {NPMP} "$@"; }}'
    asked = "".join(
        f"COMP_LINE={shlex.quote(line)}; COMP_POINT=${{#COMP_LINE}}; _npmp 2>/dev/null; echo ${{COMPREPLY[*]}};"
        for line in ("npmp polic", "npmp evaluate policy=anymal_b_ro")
    )
    assert in_shell("bash", f"{function}\n{completion.script('bash')}\n{asked}") == [
        "policies",
        "anymal_b_rough",
    ]


def test_fish_completes() -> None:
    function = f"function npmp; {NPMP} $argv; end"
    asked = "complete -C 'npmp polic'; complete -C 'npmp evaluate policy=anymal_b_ro'"
    script = f"{function}\n{completion.script('fish')}\n{asked}"
    assert in_shell("fish", script) == ["policies", "policy=anymal_b_rough"]
