"""Tables of the job file that are long enough for a file of their own, and the kinds of values that tables have.

``job.schema`` puts them together; what does not go together is said in ``job.checks``.
"""
