import sys

from herder.agent.cli import main

sys.exit(main())
