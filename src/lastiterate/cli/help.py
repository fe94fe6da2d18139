"""How `--help` is arranged: commands in the order of use, options in panels."""

from __future__ import annotations

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
        "scratch",
        "checkpoint",
        "checkpoint_every",
        "checkpoint_key",
        "devices",
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


class OrderedCommands(TyperGroup):
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
