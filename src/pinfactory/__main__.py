"""`python -m pinfactory` is the command `pinfactory`."""

import sys

from pinfactory.cli import main

if __name__ == "__main__":
    sys.exit(main())
