"""python -m lipgraft"""

import sys

from lipgraft.cli import main

if __name__ == "__main__":
    sys.exit(main())
