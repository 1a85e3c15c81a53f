"""What each field of a provisioning Cluster does on each distribution.

One table (`table.py`): admission rejects what it calls refused, the status reports such values that are stored already,
and `docs/fields.md` is generated from it. `tests/unit/api/rke/fields/test_field_table.py` checks every cell.
"""
