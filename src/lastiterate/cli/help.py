"""How `--help` is arranged: commands in the order of use, options in panels."""

from __future__ import annotations

import shutil
import textwrap
from types import MethodType
from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS = {
    "Data": ("schema", "check", "features", "plan"),
    "Train": ("train", "tune", "forget", "predict"),
    "Account": ("account", "calibrate", "theorems", "explore"),
    "Check": ("verify", "audit", "report"),
    "Release": ("export", "sign"),
    "Budget": ("ledger",),
    "Papers": ("papers",),
}
"""Panels of commands and the commands in each, in the order in which they are used."""

TRAINING = {
    "Privacy": (
        "epsilon",
        "delta",
        "adjacency",
        "n",
        "unit",
        "rows_per_unit",
        "ledger",
        "dataset",
        "report_accuracy",
    ),
    "Data": (
        "schema",
        "target",
        "classes",
        "row_norm",
        "header",
        "test",
        "test_is_public",
        "unpacked_limit",
    ),
    "Model": ("model", "features", "calibrated", "class_weight", "threshold"),
    "Candidates": ("runs", "mean_runs", "row_norms", "algorithms"),
    "Output": (
        "out",
        "json_",
        "explain_plan",
        "purpose",
        "trained_by",
        "statement",
    ),
    "Long runs": (
        "time_budget",
        "stream",
        "memory",
        "scratch",
        "checkpoint",
        "checkpoint_every",
        "checkpoint_key",
        "devices",
        "processes",
    ),
    "Expert": ("algorithm", "batch", "prox", "cap", "secure_noise"),
}
"""Panels of the options of `train` and `tune`."""

ACCOUNTING = {
    "Privacy": ("epsilon", "delta", "adjacency", "field", "release", "trust_constants"),
    "Run": ("n", "steps", "step_size", "batch", "clip", "start", "momentum", "prox", "radius"),
    "Noise": ("noise_multiplier", "noise_std", "sigma", "correlated"),
    "Constants of the loss": (
        "sensitivity",
        "lipschitz",
        "smooth",
        "strong",
        "weak_convexity",
        "log_sobolev",
        "hoelder",
        "hoelder_exponent",
    ),
    "Output": ("json_", "csv", "latex", "every", "plot", "renyi"),
}
"""Panels of the options of `account` and `calibrate`."""

OPTIONS = {"train": TRAINING, "tune": TRAINING, "account": ACCOUNTING, "calibrate": ACCOUNTING}


ANYWHERE = "--allow-plugins"
"""The option of all commands that people write behind the command, too."""
HIDDEN = {"--passes"}
"""Old names of options, which help leaves out."""
METAVARS = {"path": "PATH", "float": "X", "int": "N"}
"""Values of options by their types, as help writes them."""
COMPLETION = {
    "install_completion": "install completion for this shell",
    "show_completion": "print the completion script of this shell",
    "help": "show this help",
}


class PlainGroup(TyperGroup):
    """A group of commands whose help, and theirs, is plain text with a line for every option."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        commands: dict[str, Any] = dict(self.commands)
        for command in (self, *commands.values()):
            command.format_help = MethodType(write_help, command)


class OrderedCommands(PlainGroup):
    """A group whose help lists its commands by ``COMMANDS``, and their options by ``OPTIONS``."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        panels = {name: panel for panel, names in COMMANDS.items() for name in names}
        commands: dict[str, Any] = dict(self.commands)
        for name, command in commands.items():
            command.rich_help_panel = panels.get(name)
            arrange_options(command, OPTIONS.get(name, {}))

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:
        """The command of that name, with ``--help`` in the panel of its output."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and cmd_name in OPTIONS:
            own = command.get_help_option(ctx)
            assert own is not None
            own.rich_help_panel = "Output"
        return command

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        """Parse the words of the command line; ``--allow-plugins`` may be anywhere before ``--``."""
        end = args.index("--") if "--" in args else len(args)
        if ANYWHERE in args[:end]:
            kept = [word for word in args[:end] if word != ANYWHERE]
            args = [ANYWHERE, *kept, *args[end:]]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: typer.Context) -> list[str]:
        """The names of all commands, in the order of ``COMMANDS``."""
        ordered = [name for names in COMMANDS.values() for name in names]
        return sorted(self.commands, key=ordered.index)


def arrange_options(command: Any, panels: dict[str, tuple[str, ...]]) -> None:
    """Sort the options of ``command`` into ``panels``; arguments stay first, other options last."""
    order = [(panel, name) for panel, names in panels.items() for name in names]
    place = {name: (i, panel) for i, (panel, name) in enumerate(order)}
    for parameter in command.params:
        if parameter.name in place and parameter.param_type_name == "option":
            parameter.rich_help_panel = place[parameter.name][1]

    def key(parameter: Any) -> int:
        if parameter.param_type_name != "option":
            return -1
        return place.get(parameter.name or "", (len(order), ""))[0]

    command.params.sort(key=key)


def write_help(command: Any, ctx: typer.Context, formatter: Any) -> None:
    """Write usage, description, and a line for every argument, option and command."""
    parameters = command.get_params(ctx)
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    options = [one for one in parameters if one.param_type_name == "option" and not one.hidden]
    commands = getattr(command, "commands", {})
    usage = [ctx.command_path, "[OPTIONS]", *map(_argument, arguments)]
    text = [" ".join(["Usage:", *usage, *(["COMMAND ..."] if commands else [])]), ""]
    width = min(shutil.get_terminal_size().columns, 100)
    for paragraph in (command.help or "").replace("``", "").split("\n\n"):
        words = " ".join(paragraph.split())
        text += [*textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False), ""]
    panels: dict[str, list[tuple[str, str]]] = {}
    for one in arguments:
        panels.setdefault("Arguments", []).append((_argument(one), describe_parameter(one)))
    for one in options:
        panel = getattr(one, "rich_help_panel", None) or "Options"
        panels.setdefault(panel, []).append((_option(one), describe_parameter(one)))
    for name in command.list_commands(ctx) if commands else ():
        panel = commands[name].rich_help_panel
        panels.setdefault(panel if isinstance(panel, str) else "Commands", []).append(
            (name, commands[name].get_short_help_str(100))
        )
    column = max(len(name) for rows in panels.values() for name, _ in rows) + 2
    for panel, rows in panels.items():
        text += [f"{panel}:", *(f"  {name:{column}}{words}" for name, words in rows), ""]
    formatter.write("\n".join(text))


def describe_parameter(parameter: Any) -> str:
    """Return the line of help of an argument or option, with its default."""
    words = COMPLETION.get(parameter.name) or getattr(parameter, "help", None) or ""
    default = parameter.default
    if parameter.required and parameter.param_type_name == "option":
        return f"{words} (required)"
    if default is None or callable(default) or isinstance(default, bool) or "default" in words:
        return words
    return f"{words} [{default:g}]" if isinstance(default, float) else f"{words} [{default}]"


def _argument(argument: Any) -> str:
    """The name of an argument in usage."""
    name = (argument.metavar or argument.name).upper().strip("{}[]")
    return name if argument.required else f"[{name}]"


def _option(option: Any) -> str:
    """The names of an option and the kind of its value."""
    if option.secondary_opts:
        return f"--[no-]{option.opts[0].removeprefix('--')}"
    names = ", ".join(sorted((name for name in option.opts if name not in HIDDEN), key=len))
    if option.is_flag:
        return names
    kind = getattr(option, "type_descriptor", None)  # of typer from 0.29 on; click's type before
    words = str(getattr(option, "type", None) if kind is None else kind.annotation).lower()
    value = next((value for word, value in METAVARS.items() if word in words), "TEXT")
    return f"{names} {option.metavar or value}"
