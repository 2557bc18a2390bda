"""Entry point of the command ``headrace``."""

import io
import sys

try:
    from headrace.core.system import needs_extra
    from headrace.errors import HeadraceError
    from headrace.operate.cli.exits import ExitStatus, interrupts_kept
except KeyboardInterrupt:  # Ctrl-C during the imports: no traceback
    sys.exit(130)


def main() -> None:
    """Run the command that the process's arguments name, then exit with its status.

    The exit status is 0 on success, 1 after an error, 2 for invalid arguments and 130 after Ctrl-C.
    An error that a user can solve is printed as one sentence, without a traceback. A character that
    the output's encoding does not have is replaced.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        with interrupts_kept():
            # Inside, because Ctrl-C may come while pyspark is still being imported.
            from headrace.operate.cli.app import app  # noqa: PLC0415

            with needs_extra("spark", "This command"):
                app(prog_name="headrace")
    except HeadraceError as error:
        from headrace.operate.status.words import printable  # noqa: PLC0415  (it is slow)

        # The error may quote a name with characters that a terminal would interpret.
        sys.stderr.write(f"headrace: {printable(str(error))}\n")
        sys.exit(ExitStatus.ERROR)
    except KeyboardInterrupt:
        sys.exit(ExitStatus.INTERRUPTED)
