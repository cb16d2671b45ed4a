"""Commands of an operator to a running coordinator: ``drain evict readmit forget pause resume set``."""

from typing import Annotated

import typer

from ...one_run.asking import ask, operating
from ...screen.output import Output
from ..words import Node, Target, TheNode, Why


def drain(output: Output, target: Target, node: TheNode, *, why: Why = "") -> None:
    """Let a node hand over and leave.

    It has no place until `resume`.
    """
    _command(output, target, "drain", node, why=why)


def evict(output: Output, target: Target, node: TheNode, *, why: Why = "") -> None:
    """Put a node out at once and for good.

    Its key and its name are refused from now on, until `readmit`.
    """
    _command(output, target, "evict", node, why=why)


def readmit(output: Output, target: Target, node: TheNode, *, why: Why = "") -> None:
    """Let a node that was evicted join again."""
    _command(output, target, "readmit", node, why=why)


def forget(output: Output, target: Target, node: TheNode, *, why: Why = "") -> None:
    """Free the name of a node whose key is lost.

    The next node that joins with the name gets it.
    """
    _command(output, target, "forget", node, why=why)


def pause(output: Output, target: Target, node: Node = None, *, why: Why = "") -> None:
    """Stop training after the present step, until `resume`.

    The whole run, or one node of it.
    """
    _command(output, target, "pause", node, why=why)


def resume(output: Output, target: Target, node: Node = None, *, why: Why = "") -> None:
    """Go on after `pause` or `drain`."""
    _command(output, target, "resume", node, why=why)


def set_value(
    output: Output,
    target: Target,
    value: Annotated[str, typer.Argument(metavar="KEY=VALUE", help="As in the job file: train.learning_rate=0.0005")],
    *,
    why: Why = "",
) -> None:
    """Change a value of the job, at the next view.

    Steps, learning rate and its schedule, codecs, checkpoints, evaluation.
    """
    _command(output, target, "set", argument=value, why=why)


def _command(
    output: Output, target: str, kind: str, node: str | None = None, argument: str = "", why: str = ""
) -> None:
    """Give a running coordinator a command, and show its answer."""
    from ....proto.control_pb2 import CommandRequest
    from ...one_run.linkfile import link_text
    from ...one_run.who import who

    target = link_text(target)
    with operating(target) as link:
        request = CommandRequest(
            run=link.run, ticket=link.ticket, command=kind, node=node or "", argument=argument, by=who(), why=why
        )
        answer = ask(link, "Command", request).answer
    output.record({"answer": answer}) if output.json else output.say(answer)
