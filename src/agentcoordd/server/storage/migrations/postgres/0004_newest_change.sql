-- Which change is the newest of a record stands in the record, where a write is anyway, and in no index of all changes.
ALTER TABLE state ADD COLUMN seq bigint NOT NULL DEFAULT 0;

UPDATE state SET seq = coalesce((SELECT max(changes.seq) FROM changes WHERE changes.path = state.path), 0);

DROP INDEX changes_path;

-- As before, but that each record keeps the number of its newest change. Numbers come from the column alone: asking the
-- sequence for one would take a right that a server with no more than the tables does not have.
CREATE OR REPLACE FUNCTION apply_writes(
    kinds text[], paths text[], versions bigint[], bodies text[], machines text[]
)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    verdicts bigint[] := '{}';
    verdict bigint;
    step bigint;
    instant text;
    written boolean := false;
BEGIN
    PERFORM pg_advisory_xact_lock(4734952206111045);
    instant := to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"');
    FOR i IN 1 .. coalesce(array_length(kinds, 1), 0) LOOP
        verdict := NULL;
        IF kinds[i] = 'create' THEN
            INSERT INTO state (path, data, version, updated_at, updated_by)
            VALUES (paths[i], bodies[i], 1, instant, machines[i])
            ON CONFLICT (path) DO NOTHING RETURNING version INTO verdict;
            IF verdict IS NOT NULL THEN
                INSERT INTO changes (path, version, deleted, updated_by, at)
                VALUES (paths[i], 1, false, machines[i], instant) RETURNING seq INTO step;
                UPDATE state SET seq = step WHERE path = paths[i];
            END IF;
        ELSIF kinds[i] = 'update' THEN
            WITH told AS (
                INSERT INTO changes (path, version, deleted, updated_by, at)
                SELECT path, version + 1, false, machines[i], instant FROM state
                WHERE path = paths[i] AND version = versions[i] RETURNING seq
            )
            UPDATE state SET data = bodies[i], version = version + 1, updated_at = instant, updated_by = machines[i],
                seq = told.seq
            FROM told WHERE path = paths[i] RETURNING version INTO verdict;
        ELSE
            WITH gone AS (
                DELETE FROM state WHERE path = paths[i] AND version = versions[i] RETURNING path, version
            )
            INSERT INTO changes (path, version, deleted, updated_by, at)
            SELECT path, version, true, machines[i], instant FROM gone RETURNING version INTO verdict;
        END IF;
        written := written OR verdict IS NOT NULL;
        verdicts := array_append(verdicts, verdict);
    END LOOP;
    IF written THEN
        PERFORM pg_notify('agent_coord_changes', '');
    END IF;
    RETURN verdicts;
END
$$;
