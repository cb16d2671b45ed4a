"""Whether the codecs that a job names exist; loads no codec before one is asked about."""


def check_codec(spec: str, role: str) -> None:
    """Whether a job may use this codec in this place; the coordinator and the job know no codec themselves."""
    from ...compress import check
    from ...compress.specs.registry import module_of

    if not module_of(spec):  # a codec of a module of the job's owner: the nodes check it, who were allowed to import it
        check(spec, role)
