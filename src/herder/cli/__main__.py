"""`python -m herder.cli`: the `herder` command, where no script of that name is installed."""

from herder.cli.main import main

main()
