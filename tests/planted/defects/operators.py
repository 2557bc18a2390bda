"""Defects of operations: commands, dashboard, metrics, local services."""

from typing import Final

from tests.planted.plant import Planted

DEFECTS: Final = (
    Planted(
        "a time until a backlog is gone that counts batches for seconds",
        "operations/lags.py",
        "return left / (net / passed_s) if net > 0 else math.inf",
        "return left / net if net > 0 else math.inf",
        "tests/operations/test_lags.py",
    ),
    Planted(
        "a query that may be stopped while its last batch runs",
        "operations/draining.py",
        "return self.control.hold is not None and self.control.seen and self.running == 0",
        "return self.control.hold is not None and self.control.seen",
        "tests/operations/test_draining.py",
    ),
    Planted(
        "a limit that ends a thousand times too late",
        "operations/limiting.py",
        "until_ms = ledger.database_time_ms() + self.lasts_ms",
        "until_ms = ledger.database_time_ms() + self.lasts_ms * 1000",
        "tests/cli/test_controls.py tests/dashboard/test_actions.py",
    ),
    Planted(
        "dead letters that the brokers refused, and nobody is told",
        "operations/letter_sending.py",
        "        if refused:\n            raise refused[0]\n",
        "",
        "tests/cli/test_dead_letters.py",
    ),
    Planted(
        "a batch that hangs, and needs nobody",
        "operations/attention.py",
        "urgency = Urgency.NOW if newest.duration_ms > hangs_ms else Urgency.WATCH",
        "urgency = Urgency.WATCH if newest.duration_ms > hangs_ms else Urgency.NOW",
        "tests/operations/test_attention.py",
    ),
    Planted(
        "an interval in milliseconds under a name in seconds",
        "metrics/gates.py",
        "interval.add(own, gate.interval_ms / 1000)",
        "interval.add(own, gate.interval_ms)",
        "tests/metrics/test_exposition.py",
    ),
    Planted(
        "a counter that falls when batches are pruned",
        "metrics/totals.py",
        "            if known.reported is None or totals.ended >= known.reported.ended:\n"
        "                known.reported = totals\n",
        "            known.reported = totals\n",
        "tests/metrics/test_totals.py",
    ),
    Planted(
        "a ledger that is down, and is up in the metrics",
        "metrics/exposition.py",
        'up.add("", bool(families))',
        'up.add("", True)',
        "tests/metrics/test_exposition.py",
    ),
    Planted(
        "a label whose quotation mark ends it",
        "metrics/text.py",
        'value = value.replace("\\\\", r"\\\\").replace("\\n", r"\\n").replace(\'"\', r"\\"")',
        'value = value.replace("\\\\", r"\\\\").replace("\\n", r"\\n")',
        "tests/metrics/test_exposition.py",
    ),
    Planted(
        "a form without its token that is taken",
        "dashboard/security.py",
        "    if not hmac.compare_digest(given, session",
        "    if given and not hmac.compare_digest(given, session",
        "tests/dashboard/test_security.py",
    ),
    Planted(
        "a session that lasts a thousand times too long",
        "dashboard/security.py",
        "secrets.token_urlsafe(32), now_s + SESSION_S)",
        "secrets.token_urlsafe(32), now_s + SESSION_S * 1000)",
        "tests/dashboard/test_rendering.py",
    ),
    Planted(
        "an error's text that is markup on its page",
        "dashboard/rendering.py",
        "return escape(visible(text, lines=True))",
        "return Markup(visible(text, lines=True))",
        "tests/dashboard/test_rendering.py",
    ),
    Planted(
        "templates that escape nothing",
        "dashboard/rendering.py",
        "        autoescape=True,\n",
        "        autoescape=False,\n",
        "tests/dashboard/test_rendering.py tests/dashboard/test_live_pages.py",
    ),
    Planted(
        "a dead letter of another gate that is dropped",
        "dashboard/action_forms.py",
        "if found is None or found.gate != gate or not waits:",
        "if found is None or not waits:",
        "tests/dashboard/test_action_forms.py",
    ),
    Planted(
        "unresolved failures that end with the status of none",
        "cli/failures.py",
        "        raise typer.Exit(ExitStatus.OPEN)\n",
        "        raise typer.Exit(ExitStatus.DONE)\n",
        "tests/cli/test_batches.py",
    ),
    Planted(
        "a password from a file that has the end of its line",
        "cli/shared_options.py",
        "_text_of(file, option).strip()",
        "_text_of(file, option)",
        "tests/cli/test_options.py",
    ),
    Planted(
        "pruning of what is younger than it says",
        "cli/prune.py",
        "opened.history.prune(wall_clock_ms() - kept_ms)",
        "opened.history.prune(wall_clock_ms() + kept_ms)",
        "tests/cli/test_batches.py",
    ),
    Planted(
        "a second Ctrl-C that is ignored",
        "cli/interrupts.py",
        "        if asked and number == signal.SIGINT:\n            raise KeyboardInterrupt\n",
        "",
        "tests/cli/test_interrupts.py",
    ),
    Planted(
        "a ledger without the gate that counts as proven",
        "cli/verify.py",
        '    typer.echo(f"headrace: {sentence}", err=True)\n'
        "    raise typer.Exit(ExitStatus.OPEN)\n",
        '    typer.echo(f"headrace: {sentence}", err=True)\n'
        "    raise typer.Exit(ExitStatus.DONE)\n",
        "tests/cli/test_verify.py",
    ),
    Planted(
        "a Java 17 that is refused",
        "local/java.py",
        "        if _major(version) >= OLDEST:\n",
        "        if _major(version) > OLDEST:\n",
        "tests/local/test_java.py",
    ),
    Planted(
        "a lock of the cache that two processes have",
        "local/cache.py",
        "fcntl.flock(file, fcntl.LOCK_EX)",
        "fcntl.flock(file, fcntl.LOCK_SH)",
        "tests/local/test_cache.py tests/local/test_jars.py",
    ),
    Planted(
        "a port that another process has reserved",
        "local/server.py",
        "if _can_be_bound(port) and _reserved(port):",
        "if _can_be_bound(port):",
        "tests/local/test_broker.py",
    ),
)
