"""``farflung coordinator token``."""

import time
from typing import Annotated

import typer

from ...screen.output import Output


def token(
    output: Output,
    state: Annotated[str, typer.Argument(metavar="STATE", help="The run's folder, or its --database.")],
    *,
    ttl: Annotated[str, typer.Option(metavar="TIME", help="How long it admits nodes: 90s, 45m, 24h, 7d.")] = "24h",
    uses: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="How many first joins; with --operator, commands.",
            show_default="100, or any number of commands",
        ),
    ] = None,
    revoke: Annotated[str | None, typer.Option(metavar="ID", help="End this ticket instead.")] = None,
    operator: Annotated[bool, typer.Option("--operator", help="A link for commands; it admits no node.")] = False,
) -> None:
    """Make another ticket for a run, or end one."""
    from ....coordinator.trust.links import DEFAULT_USES, issue, revoke_ticket
    from ....coordinator.trust.tickets import parse_duration
    from ...screen.events.sentences import admits_text, hidden_join_line, join_line

    if revoke is not None:
        revoke_ticket(state, revoke)
        output.record({"revoked": revoke}) if output.json else output.say(f"ticket {revoke} admits nobody any more")
        return
    if uses is None and not operator:
        uses = DEFAULT_USES
    expires = time.time() + parse_duration(ttl)
    link = str(issue(state, ttl=ttl, uses=uses, operator=operator))
    if output.json:
        output.record({"link": link, "uses": uses, "expires": expires, "operator": operator})
        return
    if operator:
        number = f"{uses} command{'s' if uses != 1 else ''}" if uses else "any number of commands"
        output.note(f"the link gives {number} for {ttl} and admits no node; in a file, as @FILE, `ps` has it not")
        output.say(link)
    else:
        output.note(f"{admits_text(uses or 0, expires)}; where `ps` shows it to nobody:\n  {hidden_join_line(link)}")
        output.say(join_line(link))
