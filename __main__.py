"""The front door: which commands there are. What each takes is in ``cli/commands``, one file a command."""

import sys
from typing import Annotated

import typer

from . import __version__
from .cli.commands.coordinator.operate import drain, evict, forget, pause, readmit, resume, set_value
from .cli.commands.coordinator.replay import replay
from .cli.commands.coordinator.start import start
from .cli.commands.coordinator.token import token
from .cli.commands.demo import demo
from .cli.commands.export import export
from .cli.commands.generate import generate
from .cli.commands.join import join
from .cli.commands.preparing.codecs import advise, measure
from .cli.commands.preparing.codecs import codecs as show_codecs
from .cli.commands.preparing.doctor import doctor
from .cli.commands.preparing.job_init import init
from .cli.commands.preparing.plan import plan
from .cli.commands.profile import profile
from .cli.commands.run import run
from .cli.commands.runs import runs
from .cli.commands.status import status
from .cli.common import Body, command, execute, new_app, reported

app = new_app()
coordinator = new_app("Start a run and look after it.")
job = new_app("Write job files.")
codecs = new_app()


@app.callback(invoke_without_command=True)
def front_door(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Train and fine-tune large models on accelerators that are far apart.

    Try `farflung demo`; then `farflung job init`, `farflung run job.toml`.
    """
    if version:
        typer.echo(f"farflung {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def wan(context: typer.Context) -> None:
    """Emulate a WAN on this machine."""
    from .deploy.wan.cli import main as obey

    raise typer.Exit(obey(context.args))


# The order is that of `--help`.
_ALONE: tuple[Body, ...] = (demo, run, join, status, runs, profile, export, generate, plan, doctor)
_COORDINATOR: tuple[Body, ...] = (start, token, replay, drain, evict, readmit, forget, pause, resume)

for body in _ALONE:
    command(app)(body)
app.command(
    "wan",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)(wan)
for body in _COORDINATOR:
    command(coordinator)(body)
command(coordinator, "set")(set_value)
command(job)(init)
codecs.callback(invoke_without_command=True)(reported(show_codecs))
command(codecs)(measure)
command(codecs)(advise)
app.add_typer(coordinator, name="coordinator")
app.add_typer(job, name="job")
app.add_typer(codecs, name="codecs")


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit with its status."""
    sys.exit(execute(app, sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    main()
