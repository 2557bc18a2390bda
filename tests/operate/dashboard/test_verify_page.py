"""The page of a proof says what ``headrace verify`` says, whatever the verdict."""

import re
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from tests.operate.cli.outcomes import planned
from tests.operate.dashboard.conftest import Serve
from tests.services.ledgers import gated_ledger

from headrace.gate.ledger.proof import Verdict

pytestmark = pytest.mark.nightly


def _text(html: str) -> str:
    """What the page says, but for its one command."""
    return re.sub(r"<code>headrace verify .*?</code>|<[^>]+>", "", html.split("<main")[1])


def test_what_two_checkpoints_skip_is_on_the_page_until_somebody_accepts_it(
    serve: Serve, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    later = replace(planned(60, 70), checkpoint_id="another")
    with gated_ledger(
        url, "skipping", planned(0, 50, "skipping"), replace(later, gate="skipping")
    ) as ledger:
        assert ledger.proofs.verify("skipping").verdict is Verdict.SKIPPED
        page = f"{serve(url)}/verify?gate=skipping"
        before = httpx.get(page)
        ledger.repairs.accept("skipping", ledger.proofs.missed("skipping"), 10, "ada", "begun anew")
        after = httpx.get(page)
    assert before.status_code == after.status_code == 200
    assert "records between two are" in before.text
    assert "10 skipped" in before.text
    assert "Every offset is processed or explained." in after.text
    assert "<b>60</b> processed: the offsets of 1 partition over 2 checkpoints" in after.text
    assert after.text.count("headrace verify") == 1 and "--" not in _text(after.text)
    assert "10 lost or skipped and accepted" in after.text
