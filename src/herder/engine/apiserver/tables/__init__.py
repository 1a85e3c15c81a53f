"""Objects as rows: the `Table` rendering that `kubectl get` asks for.

`render` is all that verbs need; `printer_for` gives the built-in printers to whoever registers built-in kinds.
"""

from herder.engine.apiserver.tables.printers import Printer, printer_for
from herder.engine.apiserver.tables.render import render, render_scale

__all__ = ["Printer", "printer_for", "render", "render_scale"]
