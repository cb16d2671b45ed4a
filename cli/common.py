"""The common part of all commands: three options, error messages, and suggestions for typing errors.

A command is a function ``body(output, ...)`` that returns its exit status (None is 0); its other parameters are
typer's. Nothing here knows which commands there are.
"""

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from ..proto.errors import FarflungError
from ..proto.process.logs import FORMATS, set_up
from .screen.help import Command, Group
from .screen.output import INTERRUPTED, WRONG, Output, error_text

Body = Callable[..., int | None]
UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # its only public place in all versions of typer

_Json = Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout; logs go to stderr.")]
_Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def _known_format(value: str | None) -> str | None:
    if value is not None and value not in FORMATS:
        raise typer.BadParameter(f"{value!r} is neither {' nor '.join(FORMATS)}")
    return value


_LogFormat = Annotated[
    str | None,
    typer.Option(metavar="text|json", help="Logs on stderr.", show_default="text", callback=_known_format),
]


def new_app(text: str | None = None) -> typer.Typer:
    """An empty typer application. With ``text`` it is a group of commands, which shows its help when no command is
    typed."""
    # help=None differs from leaving help out: it would hide the docstring of the app's callback.
    about: dict[str, Any] = {} if text is None else {"help": text}
    app = typer.Typer(
        cls=Group,
        **about,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    if text is not None:

        @app.callback(invoke_without_command=True)
        def callback(context: typer.Context) -> None:
            if context.invoked_subcommand is None:
                typer.echo(context.get_help())

        callback.__doc__ = text
    return app


def command(group: typer.Typer, name: str | None = None) -> Callable[[Body], Body]:
    """Register ``body`` as a command of the group, under its own name unless another is given."""

    def register(body: Body) -> Body:
        group.command(name or body.__name__, cls=Command)(reported(body))
        return body

    return register


def reported(body: Body) -> Callable[..., None]:
    """The body with the three options that every command has, and with its errors reported in one place."""

    def run(**values: Any) -> None:
        json_logs = set_up(values.pop("log_format")) == "json"
        output = Output(values.pop("as_json"), values.pop("debug"), json_logs=json_logs)
        try:
            _check_finite(values)
            status = body(output, **values)
        except (typer.Exit, UsageError):
            raise
        except BaseException as error:
            status = output.fail(error)
        finally:
            output.close()
        if status:
            raise typer.Exit(status)

    parameters = [one for one in inspect.signature(body).parameters.values() if one.name != "output"]
    parameters += [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for key, kind, default in (
            ("as_json", _Json, False),
            ("debug", _Debug, False),
            ("log_format", _LogFormat, None),
        )
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__doc__ = body.__doc__
    return run


def _check_finite(values: Mapping[str, Any]) -> None:
    """FarflungError for an option that is infinite or no number: comparisons with such a limit say nothing."""
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise FarflungError(f"--{name.replace('_', '-')} {value} is not a finite number", "write a number like 2.5")


def execute(app: typer.Typer, words: list[str]) -> int:
    """Run the command line ``words`` and return its exit status. A mistake in it gives one message and status 2."""
    try:
        status = app(words, standalone_mode=False, prog_name="farflung")
    except UsageError as error:
        output = Output(as_json="--json" in words)
        message, hint = _usage(error)
        output.event({"event": "error", "message": message, "hint": hint}) if output.json else None
        output.note(error_text(message, hint))
        status = WRONG
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except Exception as error:
        status = Output(as_json="--json" in words, debug="--debug" in words).fail(error)
    return status if isinstance(status, int) else 0


def _usage(error: Any) -> tuple[str, str]:
    """(message, hint) of a mistake in the command line: the nearest right word, or where to look."""
    message = error.format_message().replace("\n", " ")
    context = error.ctx
    path = context.command_path if context is not None else "farflung"
    hint = f"{path} --help"
    if message.startswith("No such command"):
        typed = message.split("'")[1] if "'" in message else ""
        near = difflib.get_close_matches(typed, list(getattr(context.command, "commands", {})), 1, 0.5)
        message = f"no such command: {path} {typed}"
        hint = f"did you mean `{path} {near[0]}`?" if near else hint
    elif message.startswith("No such option"):
        options = [name for one in context.command.params for name in one.opts if name.startswith("--")]
        near = difflib.get_close_matches(error.option_name, options, 1, 0.5)
        message = f"no such option: {path} {error.option_name}"
        hint = f"did you mean {near[0]}?" if near else hint
    return message[:1].lower() + message[1:], hint
