"""`python -m herder.cli`: the `herder` command without an installed script."""

from herder.cli.main import main

main()
