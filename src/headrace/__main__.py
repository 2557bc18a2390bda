"""Entry point of ``python -m headrace``."""

from headrace.operate import main

if __name__ == "__main__":
    main()
