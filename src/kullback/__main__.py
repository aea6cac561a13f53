"""`python -m kullback`: the same as the command `kullback`."""

import sys

if __name__ == "__main__":
    from _kullback import main

    sys.exit(main())
