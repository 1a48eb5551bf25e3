"""`python -m limen` is the command `limen`."""

from limen.cli import main

if __name__ == "__main__":
    main()
