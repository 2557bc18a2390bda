"""``python -m headrace``: the command."""

from headrace.operate import main

if __name__ == "__main__":
    main()
