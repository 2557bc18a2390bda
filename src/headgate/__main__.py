"""``python -m headgate``: the command."""

from headgate.cli import main

if __name__ == "__main__":
    main()
