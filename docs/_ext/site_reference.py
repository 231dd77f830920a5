"""The reference: settings of a run, the command line, wrappers, errors and the Python API, as the code declares them."""

from __future__ import annotations

import argparse
import importlib
import inspect

from site_algorithms import SETTING_HEADER, kinds, setting_row
from site_markdown import code, first_sentence, table, text

from rl_training import errors as error_classes
from rl_training.arguments import make_parser
from rl_training.envs.wrappers import WRAPPERS
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import built_in
from rl_training.experiment.settings import groups_of, settings_of
from rl_training.names import split_name


def run_settings() -> str:
    """The settings of every run, group by group."""
    required = [
        ("`algo`", "", "name of the algorithm"),
        ("`env_id`", "", text(TrainConfig.model_fields["env_id"].description)),
    ]
    rows = [setting_row(TrainConfig, setting) for setting in settings_of(TrainConfig)]
    parts = [
        table(SETTING_HEADER, [*required, *rows, ("`algo_kwargs`", "`{}`", "the settings of the algorithm: see its page")])
    ]
    for name, group in groups_of(TrainConfig).items():
        if name != "algo_kwargs":
            lines = [setting_row(group, setting, f"{name}.") for setting in settings_of(group)]
            parts.append(f"## {name}\n\n{text(first_sentence(group.__doc__))}\n\n{table(SETTING_HEADER, lines)}")
    return "\n\n".join(parts)


def command_line() -> str:
    """Every command with its arguments and examples."""
    parser = make_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return "\n\n".join(_command(name, command) for name, command in commands.choices.items())


def _command(name: str, parser: argparse.ArgumentParser) -> str:
    rows = [
        (_usage(action), text(action.help or ""))
        for action in parser._actions
        if not isinstance(action, argparse._HelpAction) and "--debug" not in action.option_strings
    ]
    examples = (parser.epilog or "").removeprefix("examples:\n").replace("\n  ", "\n").strip()
    summary = text(parser.description or "")
    arguments = table(("argument", "meaning"), rows)
    return f"## {name}\n\n{summary[:1].upper()}{summary[1:]}.\n\n{arguments}\n\n```sh\n{examples}\n```"


def _usage(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else None
    if not action.option_strings:
        return code(f"{metavar or action.dest}{' ...' if action.nargs in ('+', '*') else ''}")
    if action.nargs == 0:
        return code(action.option_strings[0])
    value = "|".join(map(str, action.choices)) if action.choices else metavar or action.dest.upper()
    return code(f"{action.option_strings[0]} {value}")


def wrappers() -> str:
    """The wrappers that a config can name."""
    rows = []
    for name, place in WRAPPERS.items():
        module, attribute = split_name(place)
        wrapper = getattr(importlib.import_module(module or ""), attribute)
        parameters = list(inspect.signature(wrapper).parameters.values())[1:]
        arguments = ", ".join(code(str(one).partition(":")[0] + _default(one)) for one in parameters)
        rows.append((code(name), arguments, text(first_sentence(wrapper.__doc__))))
    return table(("wrapper", "arguments", "what it does"), rows)


def _default(parameter: inspect.Parameter) -> str:
    return "" if parameter.default is parameter.empty else f"={parameter.default!r}"


def error_names() -> dict[str, type[Exception]]:
    """The errors that are reported to the user, by name."""
    base = error_classes.RLTrainingError
    found = {name: value for name, value in vars(error_classes).items() if isinstance(value, type)}
    return {name: value for name, value in found.items() if issubclass(value, base) and value is not base}


def errors() -> str:
    """The classes of errors in a table."""
    rows = [(f"[{name}](#{name.lower()})", text(first_sentence(value.__doc__))) for name, value in error_names().items()]
    return table(("error", "what it is"), rows)


def agents() -> str:
    """The agents, which all have the methods of ``ManagedAlgorithm``."""
    rows = [
        (f"[{code('rl_training.' + algorithm.public_name)}](../algorithms/{name}.md)", kinds(algorithm.actions))
        for name, algorithm in built_in().items()
    ]
    return table(("agent", "actions"), rows)


def api(module_name: str, *names: str) -> str:
    """The public names of a module, or some of them, with their docstrings."""
    module = importlib.import_module(module_name)
    blocks = []
    for name in names or module.__all__:
        value = getattr(module, name)
        kind = "autoclass" if isinstance(value, type) else "autofunction" if callable(value) else "autodata"
        members = "\n   :members:" if kind == "autoclass" and value.__module__.startswith("rl_training") else ""
        blocks.append(f".. {kind}:: {module_name}.{name}{members}\n")
    return "```{eval-rst}\n" + "\n".join(blocks) + "```"
