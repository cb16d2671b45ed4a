"""Whether the codecs that a job names exist; loads no codec before one is asked about."""


def check_codec(spec: str, role: str) -> None:
    """Whether a job may use this codec in this place; the coordinator and the job know no codec themselves."""
    from ..compress import check

    check(spec, role)
