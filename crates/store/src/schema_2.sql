CREATE TABLE snapshots (
    id            TEXT PRIMARY KEY,
    tenant        TEXT NOT NULL,
    name          TEXT,
    kind          TEXT NOT NULL,
    sandbox       TEXT NOT NULL,
    parent        TEXT,
    template      TEXT NOT NULL,
    cpus          INTEGER NOT NULL,
    memory_mib    INTEGER NOT NULL,
    labels        TEXT NOT NULL,
    note          TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    pause_ms      REAL NOT NULL,
    durable_ms    REAL NOT NULL,
    bytes         INTEGER NOT NULL,
    dirty_pages   INTEGER NOT NULL,
    clean         INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX snapshot_names ON snapshots (tenant, name);

-- The last snapshot in a sandbox's past.
ALTER TABLE sandboxes ADD COLUMN parent TEXT;

-- Name of its directory, where that is not its id: a rolled-back sandbox has moved.
ALTER TABLE sandboxes ADD COLUMN home TEXT;

-- The snapshot that holds a paused sandbox; it has no row of its own.
ALTER TABLE sandboxes ADD COLUMN paused_in TEXT;
