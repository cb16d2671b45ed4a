"""Token windows on a node: the whole data set on disk, or pieces of a large corpus as they are needed.

Which window a step has is ``job.data.sampling``'s.
"""
