"""`python -m shardlab`: the commands of the course, which is installed beside this package. The one
module of shardlab that names the course, and only when it is run."""

import sys

if __name__ == "__main__":
    from coursekit.__main__ import main

    sys.exit(main())
