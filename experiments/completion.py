"""`npmp completion bash|zsh|fish` prints a script that completes verbs, keys, choices and names at
the prompt.

The scripts ask `npmp completion words LINE`, which needs neither Hydra nor torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mocap_data.errors import unknown
from npmp.experiments.help import CONF, choices, of_file

# Each shell puts what is before the last "=" in front, and completes files where nothing is
# answered.
SCRIPTS = {
    "bash": """\
_npmp() {
    local IFS=$'\\n'
    COMPREPLY=($(npmp completion words "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
    [[ ${COMPREPLY[0]} == *[=.] ]] && compopt -o nospace 2>/dev/null
}
complete -o default -F _npmp npmp
""",
    "zsh": """\
#compdef npmp
_npmp() {
    local -a found=(${(f)"$(npmp completion words "$LBUFFER" 2>/dev/null)"})
    (( $#found )) || { compset -P '*='; _files; return }
    compset -P '*[=,]'
    compadd -S '' -- ${(M)found:#*[=.]}
    compadd -- ${found:#*[=.]}
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _npmp npmp
""",
    "fish": """\
function __npmp
    set -l given (string match -r '^.*[=,]' -- (commandline -ct))
    set -l found (npmp completion words (commandline -cp) 2>/dev/null)
    if test (count $found) -gt 0
        printf "$given%s\\n" $found
    else
        printf "$given%s\\n" (__fish_complete_path (string replace -r '^.*=' '' -- (commandline -ct)))
    end
end
complete -c npmp -f -a '(__npmp)'
""",
}
# what an action is done to
TARGETS = {"modules": "module", "policies": "policy", "robots": "robot", "skill": "module"}
# a comment that begins "fit, show or import (..."
_LISTED = re.compile(r"^((?:\w+, )*\w+),? or (\w+)\b(?= \(|;|$)")


def script(shell: str) -> str:
    """The script for a shell. Raises InputError for another."""
    if shell not in SCRIPTS:
        raise unknown("shell", shell, SCRIPTS)
    return SCRIPTS[shell]


def words(line: str, verbs: Sequence[str]) -> list[str]:
    """What may stand at the end of a command line: whole words, after "=" or "," values. None where
    it is a file's."""
    before, current = line.split()[1:], ""
    if not line[-1:].isspace() and before:
        current = before.pop()
    if not before:
        return _beginning([*verbs, "help", "completion"], current)
    verb, *given = before
    if verb == "help":
        return _beginning(verbs, current)
    if verb == "completion":
        return _beginning(SCRIPTS, current)
    if verb not in verbs:
        return []
    key, equals, value = current.partition("=")
    settings = {name: chosen for name, _, chosen in (word.partition("=") for word in given)}
    if equals:
        return _beginning(_values(verb, key), value.rpartition(",")[2])
    text = of_file(CONF / f"{verb}.yaml")
    groups = {
        group: settings.get(group, chosen)
        for group, chosen in text.defaults.items()
        if choices(group)
    }
    group = current.partition(".")[0]
    if (
        "." in current
        and group in groups
        and (file := CONF / group / f"{groups[group]}.yaml").is_file()
    ):
        return _beginning([f"{group}.{entry.name}=" for entry in of_file(file).keys], current)
    keys = [f"{entry.name}=" for entry in text.keys if "." not in entry.name or "." in current]
    keys = [*keys, *(f"{name}=" for name in groups), "--help"]
    if not given:  # what may stand without its key
        keys = [
            *(value for name in ("action", "what", "name") for value in _values(verb, name)),
            *keys,
        ]
    elif len(given) == 1 and verb in TARGETS:
        keys = [*_values(verb, TARGETS[verb]), *keys]
    return _beginning([entry for entry in keys if entry.rstrip("=") not in settings], current)


def _values(verb: str, key: str) -> list[str]:
    """The values of a key, as far as they can be listed."""
    if key in ("module", "policy"):
        from npmp import modules, policies

        return list((modules if key == "module" else policies).names())
    text = of_file(CONF / f"{verb}.yaml")
    if key in (*text.defaults, "robot"):
        from npmp import plugins, robots

        own_names = {"robot": robots.user_names, "task": plugins.tasks}.get(key, list)()
        return [name for name in (*choices(key, verb), *own_names) if name != "your_own"]
    for entry in text.keys:
        if entry.name == key and entry.value in ("true", "false"):
            return ["true", "false"]
        if entry.name == key and (found := _LISTED.match(entry.comment)):
            return [*found[1].split(", "), found[2]]
    return []


def _beginning(entries: Sequence[str] | dict[str, str], begun: str) -> list[str]:
    return [entry for entry in dict.fromkeys(entries) if entry.startswith(begun)]
