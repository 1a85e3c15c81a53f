"""Options of machineGlobalConfig and machineSelectorConfig that each distribution supports, and their validation.

Admission and the planner share it: admission refuses what the planner could not render.
"""
