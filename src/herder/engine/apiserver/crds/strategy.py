"""The rules of CustomResourceDefinition objects."""

from __future__ import annotations

from herder.engine.apiserver.strategy import Strategy


class DefinitionStrategy(Strategy):
    unconditional_update = False
