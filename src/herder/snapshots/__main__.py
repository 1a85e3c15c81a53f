import sys

from herder.snapshots.program import main

sys.exit(main())
