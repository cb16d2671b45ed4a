"""For all tests."""

from hypothesis import settings

# Tests assert results, not seconds: what is quick alone takes long on a machine that is busy.
settings.register_profile("farflung", deadline=None)
settings.load_profile("farflung")
