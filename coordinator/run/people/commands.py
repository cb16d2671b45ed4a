"""A person's commands to a live run: drain, evict, readmit, forget, pause, resume, set. The command line and the web
page use the same entry. Every answer is a sentence, and every refusal says what to type instead.

Commands stay in the database (``held``, ``paused``, ``evicted``, ``set``), so that a coordinator that starts again
keeps them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ....job.changes import with_value
from ....job.checks.counts import check_facts
from ....job.data.facts import Facts
from ....job.forward import AUTO, settled
from ....job.schema import CheckCodec, Job
from ....job.shared import for_nodes
from ....proto.errors import JobError, Refused
from ....proto.words.border import printable
from ...membership import signals as s
from ...membership.machine import Membership
from ...membership.state import State
from ...store.store import Store

KINDS = ("drain", "evict", "readmit", "forget", "pause", "resume", "set")


@dataclass(frozen=True)
class Command:
    """``kind``: one of KINDS; ``argument``: KEY=VALUE of set. ``by``: the person, in words; ``why``: the person's
    reason."""

    kind: str
    node: str = ""
    argument: str = ""
    by: str = ""
    why: str = ""

    def sentence(self, what: str) -> str:
        """ "paused by alice@lab: the power is needed elsewhere"."""
        by = f" by {printable(self.by)}" if self.by else ""
        return f"{what}{by}" + (f": {printable(self.why)}" if self.why else "")


class CommandHandler:
    """Takes commands: checks them against the run's state, gives events to the machine, and stores the commands.

    ``feed`` gives the machine an event, ``changed(job, facts)`` gives the run another job, ``revoked()`` tells it that
    a node was evicted.
    """

    def __init__(
        self,
        store: Store,
        feed: Callable[[s.Input], None],
        changed: Callable[[Job, Facts], None],
        revoked: Callable[[], None],
        check_codec: CheckCodec | None,
    ) -> None:
        self.store, self._feed, self._changed, self._revoked = store, feed, changed, revoked
        self._check_codec = check_codec
        self.evicted: dict[str, dict[str, str]] = json.loads(store.get("evicted") or "{}")
        """Name -> key (sha256 of its public key) and why."""
        self._standing: dict[str, Any] = json.loads(store.get("set") or "{}")

    def take(self, command: Command, machine: Membership, state: State, job: Job, facts: Facts, step: int) -> str:
        """Perform a command. Returns the answer in a sentence; Refused or JobError say why it can't be done."""
        kind, name = command.kind, command.node
        if kind not in KINDS:
            raise Refused(f"there is no command {kind[:40]!r}", f"there are {', '.join(KINDS)}")
        if kind in ("drain", "evict", "readmit", "forget") and not name:
            raise Refused(f"{kind} which node?", f"farflung coordinator {kind} STATE NODE")
        if name and name not in state.nodes and name not in state.held and self.store.nodes.named(name) is None:
            known = ", ".join(row.name for row in self.store.nodes.all() if row.left_at is None)
            raise Refused(f"there is no node {name} in this run", f"there are {known or 'none yet'}")
        if kind == "set":
            return self._set(command, job, facts, step)
        if kind == "evict":
            return self._evict(command, state)
        if kind == "readmit":
            return self._readmit(command, state)
        if kind == "forget":
            return self._forget(command, state)
        if kind == "resume":
            return self._resume(command, state)
        if kind == "pause" and not name:
            return self._pause(command, state)
        return self._hold(command, machine, state)

    def refusal(self, name: str, key: str, state: State) -> str:
        """Why a node may not join: its name or key is evicted, or its name is drained; empty where it may."""
        for evicted, found in self.evicted.items():
            if evicted == name or (key and found["key"] == key):
                return f"{evicted} was {found['why']}"
        hold = state.held.get(name)
        return f"{name} is {hold.why}" if hold is not None and hold.leaves else ""

    def _set(self, command: Command, job: Job, facts: Facts, step: int) -> str:
        changed, key = with_value(job, command.argument, self._check_codec)
        changed, _ = settled(changed, facts.samples, changed.steps(facts.samples))
        table, _, name = key.partition(".")
        before, after = getattr(getattr(job, table), name), getattr(getattr(changed, table), name)
        if before == after:
            return f"{key} is {after} already"
        if changed.steps(facts.samples) <= step:
            raise Refused(f"the run has trained {step} steps already", f"{key} must leave some to train")
        facts = facts.model_copy(update={"steps": changed.steps(facts.samples)})
        check_facts(changed, facts)
        first = self._standing.get(key, {}).get("file", before)
        self._standing[key] = {"file": first, "value": after}
        self.store.put("set", json.dumps(self._standing))
        self._changed(changed, facts)
        why = command.sentence(f"{key} {_shown(before)} -> {_shown(after)}, set")
        self._feed(s.Changed(for_nodes(changed).model_dump_json(), why))
        return f"{why}; from the next view on"

    def _evict(self, command: Command, state: State) -> str:
        name, row = command.node, self.store.nodes.named(command.node)
        why = command.sentence("evicted")
        self.evicted[name] = {"key": row.key_hash if row else "", "why": why}
        self.store.put("evicted", json.dumps(self.evicted))
        self._revoked()
        self._feed(s.Evict(name, why))
        self._keep_held({key: hold for key, hold in state.held.items() if key != name})
        return f"{name} is out; its key and its name are refused from now on, but its ticket still admits other names"

    def _readmit(self, command: Command, state: State) -> str:
        name = command.node
        if name in state.held_up_by and name not in self.evicted:
            why = command.sentence(f"{name} may have a place again, readmitted")
            self._feed(s.Readmit(name, why))
            return why
        if name not in self.evicted:
            known = f"evicted are: {', '.join(sorted(self.evicted))}" if self.evicted else "nobody is evicted"
            raise Refused(f"{name} is not evicted", known)
        del self.evicted[name]
        self.store.put("evicted", json.dumps(self.evicted))
        self._revoked()
        why = command.sentence(f"{name} may join again, readmitted")
        self._feed(s.Readmit(name, why))
        return f"{why}; on its machine: farflung join LINK --name {name}"

    def _forget(self, command: Command, state: State) -> str:
        """Free a name: the next node that joins with it may have any key."""
        name, row = command.node, self.store.nodes.named(command.node)
        if name in state.nodes:
            raise Refused(f"{name} is in the run", "a name is freed when its node is gone")
        if name in self.evicted:
            raise Refused(f"{name} was {self.evicted[name]['why']}", f"farflung coordinator readmit STATE {name}")
        if name in state.held:
            raise Refused(f"{name} is {state.held[name].why}", f"first: farflung coordinator resume STATE {name}")
        if row is None or not row.key_hash:
            raise Refused(f"the name {name} belongs to no key", f"join with it: farflung join LINK --name {name}")
        left = row.left_at if row.left_at is not None else time.time()
        self.store.nodes.put(replace(row, session="", secret_hash="", key_hash="", left_at=left))
        why = command.sentence(f"the name {name} is free, forgotten")
        return f"{why}; who joins with it next has it: farflung join LINK --name {name}"

    def _pause(self, command: Command, state: State) -> str:
        if state.paused:
            raise Refused(f"the run is {state.paused} already", "farflung coordinator resume STATE")
        why = command.sentence("paused")
        self.store.put("paused", why)
        self._feed(s.Pause(why))
        return f"the run is {why}; everybody keeps what it has; `farflung coordinator resume STATE` goes on"

    def _resume(self, command: Command, state: State) -> str:
        held = dict(state.held)
        if not command.node:
            if not state.paused:
                names = f"; {', '.join(held)}: `farflung coordinator resume STATE NODE`" if held else ""
                raise Refused("the run is not paused", f"look at it: farflung status STATE{names}")
            why = command.sentence("resumed")
            self.store.put("paused", "")
            self._feed(s.GoOn(why))
            return f"the run is {why}"
        if command.node not in held:
            known = f"held are: {', '.join(held)}" if held else "nobody is held"
            raise Refused(f"{command.node} is neither drained nor paused", known)
        del held[command.node]
        self._keep_held(held)
        why = command.sentence(f"{command.node} may train again, resumed")
        self._feed(s.Release(command.node, why))
        return why

    def _hold(self, command: Command, machine: Membership, state: State) -> str:
        name, leaves = command.node, command.kind == "drain"
        without = machine.cannot_do_without(state, name)
        if without:
            raise Refused(
                f"without {name} nobody could train: {without}",
                "let another node join first; or pause the whole run: farflung coordinator pause STATE",
            )
        why = command.sentence("drained" if leaves else "paused")
        hold = s.Hold(name, why, leaves)
        self._keep_held({**state.held, name: hold})
        present = name in state.nodes
        self._feed(hold)
        until = f"until `farflung coordinator resume STATE {name}`"
        if not present:
            return f"{name} is {why}; it is not here, and has no place when it comes back, {until}"
        does = "leaves when it has handed over" if leaves else "stays as a spare from its next step's edge on"
        return f"{name} is {why}; it {does}, and has no place {until}"

    def _keep_held(self, held: dict[str, s.Hold]) -> None:
        self.store.put("held", json.dumps({name: [hold.why, hold.leaves] for name, hold in held.items()}))


def held_in(store: Store) -> dict[str, s.Hold]:
    """Name -> Hold, for the nodes that are drained or paused."""
    found: dict[str, Any] = json.loads(store.get("held") or "{}")
    return {name: s.Hold(name, why, leaves) for name, (why, leaves) in found.items()}


def standing(job: Job, store: Store, check_codec: CheckCodec | None = None) -> Job:
    """The file's job with the values that `set` changed; for a key that has changed in the file since then, the file's
    value counts."""
    kept: dict[str, Any] = json.loads(store.get("set") or "{}")
    for key, values in list(kept.items()):
        table, _, name = key.partition(".")
        if getattr(getattr(job, table), name) not in (values["file"], AUTO):  # "auto" ran as a codec
            del kept[key]
            continue
        try:
            job, _ = with_value(job, f"{key}={json.dumps(values['value'])}", check_codec)
        except JobError:
            del kept[key]
    store.put("set", json.dumps(kept))
    return job


def _shown(value: Any) -> str:
    return str(value)
