"""`python -m kullback_lint`: the same as `kullback lint`."""

import sys

if __name__ == "__main__":
    from kullback_command import main

    sys.exit(main(["lint", *sys.argv[1:]]))
