"""The longer tables of the job file, and the types of values in tables.

``job.schema`` combines them; ``job.checks`` checks combinations of values.
"""
