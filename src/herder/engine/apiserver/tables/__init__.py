"""Tables: the server-side printing that `kubectl get` requests.

Verbs use `render`; `printer_for` provides the built-in printers when built-in kinds are registered.
"""

from herder.engine.apiserver.tables.printers import Printer, printer_for
from herder.engine.apiserver.tables.render import render, render_scale

__all__ = ["Printer", "printer_for", "render", "render_scale"]
