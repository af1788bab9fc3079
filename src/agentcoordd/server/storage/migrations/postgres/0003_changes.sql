-- The feed, and the one way to write. All writes of a group are one statement of the client, so that no lock
-- outlives a client that is cut off in the middle.
CREATE TABLE changes (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    path text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    deleted boolean NOT NULL,
    updated_by text NOT NULL,
    at text NOT NULL
);

-- Which change is the newest of a record: only that one carries data.
CREATE INDEX changes_path ON changes (path, seq);

CREATE TABLE feed (
    name text NOT NULL,
    forgotten bigint NOT NULL
);

INSERT INTO feed (name, forgotten) VALUES (substr(md5(random()::text || clock_timestamp()::text), 1, 16), 0);

-- Makes conditional writes in the order given and returns, for each, the version it left behind, or null where its
-- condition did not hold. The advisory lock is held until the transaction is visible: whoever gets the next number
-- commits later, so that a reader who has seen a number has seen every one below it.
CREATE FUNCTION apply_writes(kinds text[], paths text[], versions bigint[], bodies text[], machines text[])
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    verdicts bigint[] := '{}';
    verdict bigint;
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
        ELSIF kinds[i] = 'update' THEN
            UPDATE state SET data = bodies[i], version = version + 1, updated_at = instant, updated_by = machines[i]
            WHERE path = paths[i] AND version = versions[i] RETURNING version INTO verdict;
        ELSE
            DELETE FROM state WHERE path = paths[i] AND version = versions[i] RETURNING version INTO verdict;
        END IF;
        IF verdict IS NOT NULL THEN
            INSERT INTO changes (path, version, deleted, updated_by, at)
            VALUES (paths[i], verdict, kinds[i] = 'delete', machines[i], instant);
            written := true;
        END IF;
        verdicts := array_append(verdicts, verdict);
    END LOOP;
    IF written THEN
        PERFORM pg_notify('agent_coord_changes', '');
    END IF;
    RETURN verdicts;
END
$$;

-- Servers remember whose a token is until they are told that tokens have changed.
CREATE FUNCTION tell_tokens() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('agent_coord_tokens', '');
    RETURN NULL;
END
$$;

CREATE TRIGGER machines_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON machines
FOR EACH STATEMENT EXECUTE FUNCTION tell_tokens();
