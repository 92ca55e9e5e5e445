"""`npmp new task NAME`, `npmp new robot NAME model=MODEL.xml`: a beginning that runs as it is."""

from __future__ import annotations

import re
from keyword import iskeyword
from pathlib import Path
from string import Template

from omegaconf import DictConfig

from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from npmp import plugins
from npmp.experiments.common import Run, one_of, say, verb
from npmp.experiments.help import choices
from npmp.experiments.robots import add_robot

SCAFFOLDS = Path(__file__).with_name("scaffolds")


def run(config: DictConfig, run: Run) -> int:
    """Write the files of a task or robot."""
    one_of(config, "what", "task", "robot")
    name = str(config.name)
    if config.what == "task":
        return new_task(name, run.out or Path("tasks"))
    if config.model is None:
        raise InputError("npmp new robot NAME needs model=..., an MJCF or URDF")
    return add_robot(str(config.model), name=name, out=run.out, replace=False)


def new_task(name: str, folder: Path) -> int:
    """Write FOLDER/NAME.py and NAME.yaml: turning to a heading, to be changed.

    Raises:
      InputError: for a name that no Python file can have or that is taken, and for files that are
        there.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or iskeyword(name):
        raise InputError(
            f"name={name}: small letters, digits and '_' are expected, beginning with a letter"
        )
    if name in ("starts", "judgement", "task"):  # the scaffold imports classes of these names
        raise InputError(
            f"name={name}: a class of this name is there already; give the task another one"
        )
    if name in choices("task"):
        raise InputError(f"'{name}' is a task of this package; give the new one another name")
    names = {"name": name, "Name": "".join(word.capitalize() for word in name.split("_"))}
    files = {
        folder / f"{name}{suffix}": SCAFFOLDS / f"task{suffix}.txt" for suffix in (".py", ".yaml")
    }
    for file in files:
        if file.exists():
            raise InputError(f"{file} is there already; choose another name or out=")
    folder.mkdir(parents=True, exist_ok=True)
    for file, scaffold in files.items():
        with atomic_path(file) as place:
            place.write_text(
                Template(scaffold.read_text(encoding="utf-8")).substitute(names), encoding="utf-8"
            )
    say(
        f"wrote {' and '.join(map(str, files))}; docs/your_own_task.md says what each method is for"
    )
    if folder.resolve() not in [place.resolve() for place in plugins.folders("tasks")]:
        say(f"npmp finds it where NPMP_TASKS={folder.resolve()} is set")
    say(f"train it: npmp reuse task={name} module=anymal_b_dog out=runs/{name}")
    return 0


main = verb(
    "new", run, out="optional_folder", torch=False, positional=("what", "name"), devices=("cpu",)
)

if __name__ == "__main__":
    raise SystemExit(main(None))
