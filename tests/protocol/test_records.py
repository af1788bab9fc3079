"""The fields of records, in the order programs are shown them."""

import pytest

from agentcoord.protocol import records

WHO = "thread_handle chat_handle host machine_id session_id session_source pr_url dashboard_url operator phase"
HANDOFF = "release_mode handoff_to handoff_note"
SHOWN = {
    "CLAIM_SHOWN": f"""batch_id {WHO} generation instance_id {HANDOFF} terminal pr_state evidence_url workspace
        closed_by synthetic synthetic_kind""",
    "HEARTBEAT_SHOWN": f"batch_id branch {WHO} generation instance_id status_raw synthetic synthetic_kind",
    "BATCH_SHOWN": """repo objective instructions launch_prompt operator dashboard_url status updated_at registered_at
        completed_at synthetic synthetic_kind""",
    "LANE_SHOWN": """thread_handle chat_handle host pr_url dashboard_url operator phase branch terminal closed_at
        closed_by pr_state evidence_url""",
    "EVENT_SHOWN": f"""event_id lane agent_id repo target branch status status_raw message {WHO} previous_phase
        generation instance_id {HANDOFF} terminal pr_state evidence_url workspace closed_by reason from_route to_route
        evidence severity category kind synthetic synthetic_kind""",
    "ARCHIVE_SHOWN": "record_family source_path source_paths reason synthetic archived_at delete_after",
    "METADATA": "thread_handle chat_handle host pr_url dashboard_url operator phase generation instance_id",
    "TYPED_SIGNALS": "reason from_route to_route evidence severity category kind",
}


@pytest.mark.parametrize("name", SHOWN)
def test_the_order_of_fields(name: str) -> None:
    assert list(getattr(records, name)) == SHOWN[name].split()


@pytest.mark.parametrize("name", [name for name in dir(records) if isinstance(getattr(records, name), tuple)])
def test_no_field_is_listed_twice(name: str) -> None:
    fields = getattr(records, name)
    assert len(fields) == len(set(fields))


def test_the_numbers_that_others_rely_on() -> None:
    assert (records.SCHEMA_VERSION, records.LANE_CLOSED_SCHEMA_VERSION, records.ARCHIVE_SCHEMA_VERSION) == (1, 2, 1)
    assert (records.CLAIM_TTL, records.HEARTBEAT_TTL) == (4 * 3600, 900)
    assert (records.HOT_DAYS, records.ARCHIVE_DAYS, records.SYNTHETIC_HOT_DAYS) == (7, 30, 1)
