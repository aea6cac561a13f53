"""`python -m kullback`: the same as the command `kullback`."""

import sys

if __name__ == "__main__":
    from kullback_command import main

    sys.exit(main())
