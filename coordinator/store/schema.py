"""The tables of a run's database, and how rows become statements."""

from __future__ import annotations

from typing import Any, TypeVar

from .engines.database import Statement
from .rows import CheckpointRow, EvalRow, NodeRow, ScoreRow, SetRow, StepRow, Ticket, ViewRow, WorkRow

SCHEMA = 1

TABLES = """
create table if not exists meta (key text primary key, value text not null);
create table if not exists nodes (
    name text primary key, session text, secret_hash text, key_hash text, address text, device text,
    joined real, left_at real, why text, dials_out integer not null default 0,
    ticket text not null default '');
create table if not exists tickets (
    number text primary key, secret_hash text, created real, expires real, uses integer, revoked integer);
create table if not exists views (
    number integer primary key, plan text, members text, step integer, cursor integer, redo text, checkpoint integer,
    why text, time real);
create table if not exists steps (
    step integer primary key, view integer, loss real, samples integer, tokens integer, seconds real,
    bytes_updates integer, bytes_activations integer, bytes_other integer, bytes_dense integer,
    bytes_dense_updates integer, notes text, time real);
create table if not exists evals (step integer primary key, loss real, tokens integer, accuracy real, time real);
create table if not exists eval_sets (
    step integer, name text, loss real, accuracy real, tokens integer, primary key (step, name));
create table if not exists checkpoints (step integer primary key, path text, cursor integer, redo text, time real);
create table if not exists warnings (id integer primary key, time real, node text, message text);
create table if not exists scores (
    node text, judge text, count integer, own real, held real, score real, time real, primary key (node, judge));
create table if not exists work (node text primary key, samples integer, steps integer, time real);
create table if not exists links (
    source text, target text, latency_s real, bandwidth_bps real, time real, primary key (source, target));
"""

ADDED = [("nodes", "dials_out integer not null default 0"), ("nodes", "ticket text not null default ''")]
"""Columns that older files lack; the last of their table and of its row."""
Row = TypeVar("Row", NodeRow, Ticket, ViewRow, StepRow, EvalRow, SetRow, CheckpointRow, WorkRow, ScoreRow)
NAMES: dict[type, str] = {
    NodeRow: "nodes",
    Ticket: "tickets",
    ViewRow: "views",
    StepRow: "steps",
    EvalRow: "evals",
    SetRow: "eval_sets",
    CheckpointRow: "checkpoints",
    WorkRow: "work",
    ScoreRow: "scores",
}
KEYS: dict[str, tuple[str, ...]] = {
    "meta": ("key",),
    "nodes": ("name",),
    "tickets": ("number",),
    "views": ("number",),
    "steps": ("step",),
    "evals": ("step",),
    "eval_sets": ("step", "name"),
    "checkpoints": ("step",),
    "work": ("node",),
    "scores": ("node", "judge"),
    "links": ("source", "target"),
}
"""Columns of each table's key."""
SUMMED = (
    "samples",
    "tokens",
    "bytes_updates",
    "bytes_activations",
    "bytes_other",
    "bytes_dense",
    "bytes_dense_updates",
)
"""Columns of a step that ``totals`` adds up."""
LINK = ("source", "target", "latency_s", "bandwidth_bps", "time")


def upsert(table: str, row: dict[str, Any]) -> Statement:
    """Insert a row, or replace the one with its key."""
    keys = KEYS[table]
    rest = ", ".join(f"{name} = excluded.{name}" for name in row if name not in keys)
    marks = ", ".join("?" * len(row))
    conflict = f"on conflict ({', '.join(keys)}) do update set {rest}"
    sql = f"insert into {table} ({', '.join(row)}) values ({marks}) {conflict}"
    values = [int(value) if isinstance(value, bool) else value for value in row.values()]
    return sql, values
