"""farflung trains and fine-tunes large models on accelerators that are far apart.

The rooms: ``compress`` (codecs), ``scheduler`` (who trains what with whom), ``coordinator`` (membership),
``node`` (the worker), ``proto`` (what goes over the wire), ``deploy`` (places to run it).
"""

__version__ = "0.1.0"
