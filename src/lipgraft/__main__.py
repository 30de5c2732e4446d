"""python -m lipgraft, and the command `lipgraft`"""

import sys

from lipgraft.interrupts import held_back


def main() -> int:
    """The command line; Ctrl-C while it is being loaded is one line too."""
    try:
        with held_back():
            from lipgraft.cli import main as command
        return command()
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
